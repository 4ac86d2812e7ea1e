#include "foreign/pickle_names.h"

#include <algorithm>
#include <iterator>

namespace megalith {
namespace {

struct NameRow {
  std::string_view name;  // a trailing '.' means everything below
  NameUse use = NameUse::kObject;
};

// Classes and functions that trainers' checkpoints are made of.
constexpr NameRow kNames[] = {
    {"collections.OrderedDict", NameUse::kDict},
    {"collections.defaultdict", NameUse::kDict},
    {"builtins.dict", NameUse::kDict},
    {"builtins.set", NameUse::kTuple},
    {"builtins.list", NameUse::kTuple},
    {"builtins.getattr"},  // members of enumerations
    {"builtins.int"},
    {"builtins.float"},
    {"builtins.slice"},
    {"builtins.complex"},
    {"__builtin__.set", NameUse::kTuple},
    {"torch.Size", NameUse::kTuple},
    {"_codecs.encode", NameUse::kBytes},
    {"argparse.Namespace"},
    {"types.SimpleNamespace"},
    {"pathlib.PosixPath"},
    {"pathlib._local.PosixPath"},
    {"signal.Signals"},
    {"_io.BytesIO"},
    {"torch.device"},
    {"torch._utils._rebuild_tensor_v2"},
    {"torch._utils._rebuild_tensor"},
    {"torch._utils._rebuild_parameter"},
    {"torch._tensor._rebuild_from_type_v2"},
    {"torch.Tensor"},
    {"torch.nn.parameter.Parameter"},
    {"torch.serialization._get_layout"},
    {"torch.storage.UntypedStorage"},
    {"torch.distributed.checkpoint.metadata.Metadata"},
    {"torch.distributed.checkpoint.metadata.MetadataIndex"},
    {"torch.distributed.checkpoint.metadata.StorageMeta"},
    {"torch.distributed.checkpoint.metadata.TensorProperties"},
    {"torch.distributed.checkpoint.metadata.TensorStorageMetadata"},
    {"torch.distributed.checkpoint.metadata.BytesStorageMetadata"},
    {"torch.distributed.checkpoint.metadata.ChunkStorageMetadata"},
    {"torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.filesystem._StorageInfo"},
    {"torch.distributed.checkpoint.filesystem._StoragePrefix"},
    {"torch.distributed.checkpoint.filesystem.SerializationFormat"},
    {"torch.distributed.checkpoint.planner."},  // kept beside, in Megatron-core's
    // Random states: read over, not used.
    {"numpy.core.multiarray._reconstruct"},
    {"numpy._core.multiarray._reconstruct"},
    {"numpy.core.multiarray.scalar"},
    {"numpy._core.multiarray.scalar"},
    {"numpy.ndarray"},
    {"numpy.dtype"},
    // Fields of Megatron-LM's arguments.
    {"megatron.core.enums."},
    {"megatron.core.transformer.enums."},
    {"megatron.core.rerun_state_machine."},
    {"megatron.core.dist_checkpointing.strategies.torch.TensorReformulationMetadata"},
    {"megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata"},
    {"megatron.model.enums."},
    {"transformers.trainer_utils."},
    // DeepSpeed's.
    {"deepspeed.runtime.fp16.loss_scaler."},
    {"deepspeed.runtime.zero.config.ZeroStageEnum"},
    {"deepspeed.utils.tensor_fragment.fragment_address"},
};

// torch.FloatStorage, torch.bfloat16, torch.strided.
constexpr std::string_view kTorchWords[] = {
    "float16", "bfloat16", "float32", "float64", "float", "half", "double", "int8", "uint8", "int16", "uint16", "int32",
    "uint32", "int64", "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "strided", "contiguous_format", "preserve_format", "channels_last",
    "FloatStorage", "DoubleStorage", "HalfStorage", "BFloat16Storage", "LongStorage", "IntStorage", "ShortStorage",
    "CharStorage", "ByteStorage", "BoolStorage"};

}  // namespace

std::optional<NameUse> use_of_name(std::string_view name) {
  if (name.starts_with("torch.")) {
    const auto* const word = std::find(std::begin(kTorchWords), std::end(kTorchWords), name.substr(6));
    if (word != std::end(kTorchWords)) return NameUse::kObject;
  }
  for (const NameRow& row : kNames) {
    if (row.name == name || (row.name.ends_with('.') && name.starts_with(row.name))) return row.use;
  }
  return std::nullopt;
}

}  // namespace megalith
