"""What KubeRay and Kubernetes take, as far as the jobs of deploy/ use it: schemas in which a key
that is not named here is a mistake.

The keys and types are those of the API references of KubeRay 1.6 (`ray.io/v1`: RayJob, RayCluster)
and of Kubernetes (`v1`: PodSpec, Container, PersistentVolumeClaim; `batch/v1`: CronJob). They were written down here by
hand, and no operator was asked: a schema says that nothing is misspelt or of a wrong type. It does
not say that a job runs. A key of those APIs that a file begins to use needs its line.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
YES_OR_NO: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
"""A DNS label (RFC 1123), which names of objects, groups, containers and volumes are."""
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
PATH: Schema = {"type": "string", "pattern": "^/"}


def table(required: str, **keys: Schema) -> Schema:
    """An object that has the required keys, by name, and no other keys than these."""
    return {
        "type": "object",
        "properties": keys,
        "required": required.split(),
        "additionalProperties": False,
    }


def list_of(entry: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": entry, "minItems": least}


def map_of(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


METADATA = table("name", name=NAME, namespace=NAME, labels=map_of(TEXT), annotations=map_of(TEXT))
AMOUNTS: Schema = {
    "type": "object",
    "propertyNames": {"enum": ["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"]},
    "additionalProperties": QUANTITY,
}
CONTAINER = table(
    "name image resources",
    name=NAME,
    image=TEXT,
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    workingDir=PATH,
    command=list_of(TEXT),
    args=list_of(TEXT),
    env=list_of(table("name value", name=TEXT, value=TEXT)),
    resources=table("requests limits", requests=AMOUNTS, limits=AMOUNTS),
    volumeMounts=list_of(table("name mountPath", name=NAME, mountPath=PATH, readOnly=YES_OR_NO)),
)
POD_SECURITY = table(
    "",
    runAsNonRoot=YES_OR_NO,
    runAsUser=COUNT,
    runAsGroup=COUNT,
    fsGroup=COUNT,
    fsGroupChangePolicy=one_of("OnRootMismatch", "Always"),
)
TOLERATION = table(
    "",
    key=TEXT,
    operator=one_of("Exists", "Equal"),
    value=TEXT,
    effect=one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
)
CLAIMED = table("claimName", claimName=NAME, readOnly=YES_OR_NO)
POD = table(
    "containers",
    containers=list_of(CONTAINER, least=1),
    restartPolicy=one_of("Always", "OnFailure", "Never"),
    securityContext=POD_SECURITY,
    tolerations=list_of(TOLERATION),
    volumes=list_of(table("name", name=NAME, persistentVolumeClaim=CLAIMED)),
)
TEMPLATE = table("spec", spec=POD)
# Ray's options are text, numbers too.
START = map_of(TEXT)
WORKERS = table(
    "groupName rayStartParams template minReplicas maxReplicas",
    groupName=NAME,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=START,
    template=TEMPLATE,
)
CLUSTER = table(
    "headGroupSpec",
    rayVersion=TEXT,
    authOptions=table("", mode=one_of("disabled", "token")),
    enableInTreeAutoscaling=YES_OR_NO,
    autoscalerOptions=table("", idleTimeoutSeconds=COUNT),
    headGroupSpec=table("rayStartParams template", rayStartParams=START, template=TEMPLATE),
    workerGroupSpecs=list_of(WORKERS),
)


def resource(version: str, kind: str, spec: Schema) -> Schema:
    """A document of `kubectl apply`."""
    return table(
        "apiVersion kind metadata spec",
        apiVersion=one_of(version),
        kind=one_of(kind),
        metadata=METADATA,
        spec=spec,
    )


RAY_JOB = resource(
    "ray.io/v1",
    "RayJob",
    table(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        shutdownAfterJobFinishes=YES_OR_NO,
        ttlSecondsAfterFinished=COUNT,
        backoffLimit=COUNT,
        activeDeadlineSeconds=COUNT,
        rayClusterSpec=CLUSTER,
    ),
)
CRON_JOB = resource(
    "batch/v1",
    "CronJob",
    table(
        "schedule jobTemplate",
        schedule=TEXT,
        timeZone=TEXT,
        concurrencyPolicy=one_of("Allow", "Forbid", "Replace"),
        failedJobsHistoryLimit=COUNT,
        successfulJobsHistoryLimit=COUNT,
        startingDeadlineSeconds=COUNT,
        jobTemplate=table(
            "spec",
            spec=table(
                "template", backoffLimit=COUNT, activeDeadlineSeconds=COUNT, template=TEMPLATE
            ),
        ),
    ),
)
CLAIM = resource(
    "v1",
    "PersistentVolumeClaim",
    table(
        "accessModes resources",
        accessModes=list_of(one_of("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"), least=1),
        resources=table("requests", requests=table("storage", storage=QUANTITY)),
        storageClassName=TEXT,
    ),
)

SUFFIXES = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SUFFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", start=1)}


def amount(quantity: str) -> float:
    """A quantity of Kubernetes as a number: "4Gi" is 4 * 2^30, "500m" is 0.5."""
    number = quantity.rstrip("mkMGTiK")
    return float(number) * SUFFIXES[quantity[len(number) :]]
