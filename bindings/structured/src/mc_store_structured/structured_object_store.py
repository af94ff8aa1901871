"""Objects of many members in a store: arrays, tensors, bytes, and batches of named fields.

The names, the arguments and the stored format are those of Mooncake's module, so each system reads
what the other one stored. Nothing is pickled, and nothing is unpickled.
"""

from __future__ import annotations

from ._objects.errors import StructuredFormatError, StructuredTransferError
from ._objects.fields import FieldSchema
from ._objects.handles import (
    DATAPROTO_REF_HANDLE_TYPE,
    DATAPROTO_REF_HANDLE_VERSION,
    STORAGE_GROUP_ID,
    export_dataproto_ref,
    export_ref,
    import_dataproto_ref,
    import_ref,
    is_dataproto_ref_handle,
)
from ._objects.inference import MISSING, infer_structure
from ._objects.memory import raw_destination, tensor_object_buffer
from ._objects.policy import (
    AUTO_PARALLEL_MIN_BYTES,
    AUTO_PARALLEL_MIN_CHUNKS,
    DEFAULT_BUNDLE_CHUNK_BYTES,
    BundleStore,
    BundleTransferPolicy,
)
from ._objects.refs import (
    DataProtoRefLike,
    MooncakeDataProtoRef,
    RemoteBundleRef,
    StructuredFieldLocation,
)
from ._objects.removal import MISSING_OBJECT_ERROR
from ._objects.slices import StructuredMemberSlice
from ._objects.structured import (
    STRUCTURED_FIELD_SPECS_KEY,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
)
from ._objects.transfer import MooncakeBundleTransfer

__all__ = [
    "AUTO_PARALLEL_MIN_BYTES",
    "AUTO_PARALLEL_MIN_CHUNKS",
    "DATAPROTO_REF_HANDLE_TYPE",
    "DATAPROTO_REF_HANDLE_VERSION",
    "DEFAULT_BUNDLE_CHUNK_BYTES",
    "MISSING",
    "MISSING_OBJECT_ERROR",
    "STORAGE_GROUP_ID",
    "STRUCTURED_FIELD_SPECS_KEY",
    "BundleStore",
    "BundleTransferPolicy",
    "DataProtoRefLike",
    "FieldSchema",
    "MooncakeBundleTransfer",
    "MooncakeDataProtoRef",
    "RemoteBundleRef",
    "StructuredFieldLocation",
    "StructuredFormatError",
    "StructuredMemberSlice",
    "StructuredObjectPayload",
    "StructuredObjectReadSpec",
    "StructuredObjectResult",
    "StructuredTransferError",
    "export_dataproto_ref",
    "export_ref",
    "import_dataproto_ref",
    "import_ref",
    "infer_structure",
    "is_dataproto_ref_handle",
    "raw_destination",
    "tensor_object_buffer",
]
