"""What deploy/ says can be read, agrees with the constraints, and runs commands that exist."""

import copy
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import ray.autoscaler
import yaml
from kuberay import CLAIM, CRON_JOB, RAY_JOB, amount
from ray.scripts.scripts import cli
from shown import commands_of

from fedray.clients.host import ShardHost
from fedray.runtime.gauges import CLAIM as OF_CLAIMS
from fedray.runtime.gauges import OF_A_CLAIM, OF_A_RUN, RUN
from fedray.scenario import Scenario
from fedray.studies.sweep.sweep import Sweep

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SHOWN = commands_of(DEPLOY / "README.md")


def arguments_of(command: str) -> list[str]:
    """What follows `python -m fedray run`; the scenario it names must ship."""
    words = shlex.split(command)
    start = words.index("fedray")
    assert words[start - 2 : start + 2] == ["python", "-m", "fedray", "run"]
    assert Scenario.from_toml(ROOT / words[start + 2]).name == "quickstart"
    return words[start + 3 :]


def test_the_job_runs_the_quickstart_on_the_cluster_it_is_given() -> None:
    job, claim = documents()
    assert arguments_of(job["spec"]["entrypoint"])[:2] == ["--place", "address=auto"]
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    mounted = head["containers"][0]["volumeMounts"][0]["mountPath"]
    assert shlex.split(job["spec"]["entrypoint"])[
        shlex.split(job["spec"]["entrypoint"]).index("--resume") + 1
    ].startswith(mounted)


def documents(name: str = "rayjob.yaml") -> list[dict[str, Any]]:
    """The job of a file, and of rayjob.yaml the claim too."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


JOBS = {name: documents(name)[0] for name in ("rayjob.yaml", "rayjob-sweep.yaml")}
of_each_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def groups_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The group of the head, and those of the workers."""
    cluster = job["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def containers_of(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in groups_of(job):
        yield from group["template"]["spec"]["containers"]


@of_each_job
def test_a_job_has_only_keys_that_kuberay_and_kubernetes_know(job: dict[str, Any]) -> None:
    jsonschema.validate(job, RAY_JOB)


def test_the_claim_has_only_keys_that_kubernetes_knows() -> None:
    jsonschema.validate(documents()[1], CLAIM)


def test_the_sweep_runs_a_shipped_one_on_a_cluster_that_may_have_no_workers() -> None:
    job = JOBS["rayjob-sweep.yaml"]
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:4] == ["python", "-m", "fedray", "sweep"]
    sweep, scenario = Sweep.from_toml(ROOT / words[4])
    assert scenario is not None
    assert len(sweep.cells()) >= 8
    head, workers = groups_of(job)
    mounted = [mount["mountPath"] for mount in next(containers_of(job))["volumeMounts"]]
    kept = {each["name"]: each["value"] for each in next(containers_of(job))["env"]}
    out = words[words.index("--out") + 1]
    assert all(path.startswith(f"{mounted[0]}/") for path in (out, kept["XDG_CACHE_HOME"]))
    volume = head["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]
    assert volume["claimName"] == documents()[1]["metadata"]["name"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert (workers["minReplicas"], workers["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_the_nightly_job_has_only_known_keys_and_runs_the_line_of_cron_once() -> None:
    """A failure is an answer, so nothing repeats it; two nights never append to one trace at once."""
    (nightly,) = documents("cronjob.yaml")
    jsonschema.validate(nightly, CRON_JOB)
    job = nightly["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (nightly["spec"]["concurrencyPolicy"], job["backoffLimit"]) == ("Forbid", 0)
    assert pod["restartPolicy"] == "Never"
    assert container["command"] == ["sh", "-c"]
    shown = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    assert f"cd /srv/live && {container['args'][0]}\n" in shown
    for option in ("--in-force in-force.toml", "--rounds logged"):
        assert option in shown.partition("## Every night")[2].partition("### The history")[0]
        assert option in (ROOT / "deploy" / "cronjob.yaml").read_text(encoding="utf-8")
    assert container["workingDir"] == container["volumeMounts"][0]["mountPath"]
    (volume,) = pod["volumes"]
    claim = documents()[1]["metadata"]["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim
    head = groups_of(JOBS["rayjob.yaml"])[0]["template"]["spec"]
    assert pod["securityContext"] == head["securityContext"]
    assert container["image"] == head["containers"][0]["image"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**nightly, "scedule": ""}, CRON_JOB)


def a_key_in_the_wrong_place(job: dict[str, Any]) -> None:
    groups_of(job)[0]["template"]["fsGroup"] = 100


def a_misspelt_key(job: dict[str, Any]) -> None:
    next(containers_of(job))["workingDirectory"] = "/"


def a_number_where_ray_wants_text(job: dict[str, Any]) -> None:
    groups_of(job)[1]["rayStartParams"]["num-gpus"] = 1


def an_amount_with_an_unknown_unit(job: dict[str, Any]) -> None:
    next(containers_of(job))["resources"]["limits"]["memory"] = "4GB"


@pytest.mark.parametrize(
    "mistake",
    [
        a_key_in_the_wrong_place,
        a_misspelt_key,
        a_number_where_ray_wants_text,
        an_amount_with_an_unknown_unit,
    ],
)
def test_the_schema_finds_mistakes(mistake: Callable[[dict[str, Any]], None]) -> None:
    job = copy.deepcopy(documents()[0])
    mistake(job)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, RAY_JOB)


@of_each_job
def test_every_group_can_be_scheduled_and_mounts_what_it_has(job: dict[str, Any]) -> None:
    """What an operator or a scheduler refuses although every key is right."""
    groups = groups_of(job)
    names = [group["groupName"] for group in groups[1:]]
    assert len(set(names)) == len(names)
    for group in groups[1:]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
            limits, requests = (container["resources"][key] for key in ("limits", "requests"))
            assert limits.keys() == requests.keys() >= {"cpu", "memory", "ephemeral-storage"}
            assert all(amount(requests[key]) <= amount(limits[key]) for key in limits)
            # Extended resources cannot be overcommitted.
            assert requests.get("nvidia.com/gpu") == limits.get("nvidia.com/gpu")


@of_each_job
def test_all_containers_have_one_image_which_may_be_on_the_node_already(
    job: dict[str, Any],
) -> None:
    containers = list(containers_of(job))
    assert {container["image"] for container in containers} == {"fedray:latest"}
    assert {container["imagePullPolicy"] for container in containers} == {"IfNotPresent"}


@of_each_job
def test_the_volume_can_be_written_by_the_image_s_user(job: dict[str, Any]) -> None:
    """Ray's images have the user 1000 in the group 100; a new volume belongs to root."""
    pods = [group["template"]["spec"] for group in groups_of(job)]
    for pod in pods:
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 1000)
    assert pods[0]["securityContext"]["fsGroup"] == pods[0]["securityContext"]["runAsGroup"] == 100


def test_one_group_has_a_gpu_and_is_off_as_long_as_the_job_asks_for_none() -> None:
    job, _ = documents()
    with_gpu = [
        group
        for group in groups_of(job)[1:]
        if "nvidia.com/gpu" in group["template"]["spec"]["containers"][0]["resources"]["limits"]
    ]
    assert [group["groupName"] for group in with_gpu] == ["aggregator"]
    asks = "aggregator_gpus" in job["spec"]["entrypoint"]
    assert with_gpu[0]["replicas"] == int(asks)
    tolerated = with_gpu[0]["template"]["spec"]["tolerations"][0]
    assert (tolerated["key"], tolerated["operator"]) == ("nvidia.com/gpu", "Exists")


def test_the_cluster_file_is_one_that_ray_up_reads() -> None:
    """By Ray's own schema, which `ray up` holds it to."""
    schema = Path(ray.autoscaler.__path__[0]) / "ray-schema.json"
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    jsonschema.validate(cluster, json.loads(schema.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "file_mount": {}}, json.loads(schema.read_text()))


def test_one_ray_everywhere() -> None:
    """Driver and nodes must run the same Ray."""
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pinned is not None
    versions = {job["spec"]["rayClusterSpec"]["rayVersion"] for job in JOBS.values()}
    assert versions == {pinned[1]}
    assert f"rayproject/ray:{pinned[1]}-py311" in (DEPLOY / "Dockerfile").read_text()


def test_no_ray_is_allowed_that_asks_for_no_token_by_default() -> None:
    """Ray 2.59 is the first whose local clusters do; an older one would run anybody's code of this machine."""
    least = re.search(
        r'^  "ray>=(\d+)\.(\d+),', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE
    )
    assert least is not None
    assert (int(least[1]), int(least[2])) >= (2, 59)


def test_the_cluster_file_and_the_job_command_can_be_read() -> None:
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    assert cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
    (command,) = [line for line in SHOWN if line.startswith("ray job submit")]
    assert "--working-dir ." in command
    assert "address=auto" in arguments_of(command.partition(" -- ")[2])


@pytest.mark.parametrize("line", [line for line in SHOWN if line.startswith("ray ")])
def test_every_command_of_ray_that_is_shown_has_options_that_exist(line: str) -> None:
    command: Any = cli
    _, *words = shlex.split(line)
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


def test_the_dashboard_asks_for_every_gauge_and_for_no_other(small) -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:ray|fedray)_\w+", target["expr"])
    }
    of_shards = ShardHost(small(), [(0, small().population.devices)]).gauges()
    of_a_run = {f"ray_{RUN}_{name}" for name in OF_A_RUN}
    of_claims = {f"{OF_CLAIMS}_{name}" for name in OF_A_CLAIM}
    assert asked == of_a_run | of_claims | {f"ray_fedray_shard_{name}" for name in of_shards}
    (run,) = [each for each in dashboard["templating"]["list"] if each["name"] == "run"]
    assert re.findall(r"\bray_\w+", run["query"]["query"])[0] in of_a_run
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_file_that_a_shown_command_names_exists() -> None:
    named = {word for line in SHOWN for word in shlex.split(line) if word.startswith("deploy/")}
    files = {"Dockerfile", "ray-cluster.yaml", "rayjob.yaml", "rayjob-sweep.yaml", "cronjob.yaml"}
    assert named == {f"deploy/{name}" for name in files}
    assert all((ROOT / name).is_file() for name in named)


def test_whoever_submits_a_job_has_the_token_and_says_so() -> None:
    """Ray's clients send no token unless the variable says that there is one."""
    submits = next(place for place, line in enumerate(SHOWN) if line.startswith("ray job"))
    for line in (
        "ray get-auth-token --generate",
        "chmod 600 ~/.ray/auth_token",
        "export RAY_AUTH_MODE=token",
    ):
        assert SHOWN.index(line) < submits


def test_no_port_is_open_to_those_without_the_token() -> None:
    """Every `ray start` asks for it, and every node gets it; where the dashboard need not leave the head, it does not."""
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    starts = [
        line
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in cluster[key]
        if "ray start" in line
    ]
    assert len(starts) == 2
    assert all(line.startswith("RAY_AUTH_MODE=token ray start ") for line in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert list(cluster["file_mounts"]) == ["/home/ray/.ray/auth_token"]
    for job in JOBS.values():
        assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
