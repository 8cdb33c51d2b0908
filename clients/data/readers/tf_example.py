"""Decodes tf.train.Example (tensorflow/core/example/feature.proto) with protobuf."""

from collections.abc import Collection
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

Feature = list[bytes] | NDArray
"""Values of one feature: bytes, float32 [N] or int64 [N]."""
# The messages are declared here because TensorFlow, which has them, is not a dependency.
_FILE = """
name: "fedray/example.proto" package: "fedray" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes" number: 1 type: TYPE_MESSAGE type_name: "BytesList" oneof_index: 0 }
  field { name: "floats" number: 2 type: TYPE_MESSAGE type_name: "FloatList" oneof_index: 0 }
  field { name: "integers" number: 3 type: TYPE_MESSAGE type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: "FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" } }
"""


def _example_type() -> Any:
    # A pool of its own: in the default one TensorFlow may have declared names like these.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedray.Example"))


_Example = _example_type()


def decode_example(content: bytes, wanted: Collection[str]) -> dict[str, Feature]:
    """Returns the features of one serialized example by name; absent ones are left out.

    Args:
        content: the message.
        wanted: names of the features to return.

    Raises:
        ValueError: the content is not such a message.
    """
    try:
        features = _Example.FromString(content).features.feature
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return {name: _values(features[name]) for name in wanted if name in features}


def _values(feature: Any) -> Feature:
    kind = feature.WhichOneof("kind")
    if kind == "floats":
        return np.array(feature.floats.value, np.float32)
    if kind == "integers":
        return np.array(feature.integers.value, np.int64)
    return list(feature.bytes.value)
