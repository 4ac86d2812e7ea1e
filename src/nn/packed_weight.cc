#include "nn/packed_weight.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "comm/group.h"
#include "core/error.h"
#include "ops/nf4/nf4.h"

namespace megalith {

PackedWeight::PackedWeight(const std::string& name, const Placement& placement, const ParameterOptions& options)
    : name_(name), packing_(*options.packing), dtype_(options.dtype) {
  MEGALITH_CHECK(placement.local_shape.size() == 2, "{}: only matrices are packed", name);
  const int64_t all_rows = placement.local_shape[0];
  columns_ = placement.local_shape[1];
  const int64_t num_ranks = packing_.ranks == nullptr ? 1 : packing_.ranks->size();
  const int64_t rank = packing_.ranks == nullptr ? 0 : packing_.ranks->rank();
  const bool are_columns_cut = packing_.cut_dim == 1 && num_ranks > 1;
  if (are_columns_cut && columns_ % ops::kNf4Block != 0) {
    throw UserError(fmt::format("lora.quantization is nf4, and a rank has {} columns of {}: blocks of {} would lie on "
                                "two ranks",
                                columns_, name, ops::kNf4Block),
                    "choose fewer ranks of tensor parallelism (tensor_model_parallel_size, of experts "
                    "expert_tensor_parallel_size)");
  }
  const int64_t blocks_here = div_up(columns_, ops::kNf4Block);
  const int64_t blocks_of_row = are_columns_cut ? blocks_here * num_ranks : blocks_here;
  std::vector<int32_t> first_blocks(static_cast<size_t>(all_rows), 0);
  int64_t num_groups = 0;
  for (const Piece& piece : placement.pieces) {
    const int64_t first_row = piece.local.offset[0], rows = piece.local.extent[0];
    MEGALITH_CHECK(piece.local.extent[1] == columns_, "{}: a piece of {} columns of {}", name, piece.local.extent[1],
                   columns_);
    if (rows == 0) continue;
    const int64_t first_block = rank * (are_columns_cut ? blocks_here : rows * blocks_of_row);
    const int64_t last_block = first_block + (rows - 1) * blocks_of_row + blocks_here - 1;
    const int64_t first_group = first_block / ops::kNf4ScaleGroup;
    const int64_t groups_here = last_block / ops::kNf4ScaleGroup - first_group + 1;
    MEGALITH_CHECK((num_groups + groups_here) * ops::kNf4ScaleGroup <= std::numeric_limits<int32_t>::max(),
                   "{} has more blocks than are counted", name);
    for (int64_t row = 0; row < rows; ++row) {
      first_blocks[static_cast<size_t>(first_row + row)] = static_cast<int32_t>(
          (num_groups - first_group) * ops::kNf4ScaleGroup + first_block + row * blocks_of_row);
    }
    matrices_.push_back({first_row, rows, num_groups, groups_here, first_group});
    num_groups += groups_here;
  }
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(options.device);
  codes_ = at::zeros({all_rows, div_up(columns_, int64_t{2})}, bytes);
  scales_ = at::zeros({all_rows, blocks_here}, bytes);
  groups_ = at::zeros({num_groups, 2}, bytes.dtype(at::kFloat));
  first_blocks_ = at::tensor(first_blocks, at::kInt).to(options.device);
  levels_ = ops::nf4_scale_levels().to(options.device);
}

void PackedWeight::pack(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const ops::Nf4Blocks blocks = ops::nf4_quantise(values, packing_.kernels);
  codes_.copy_(blocks.codes);
  const bool is_cut = packing_.ranks != nullptr && packing_.ranks->size() > 1;
  const int64_t num_ranks = is_cut ? packing_.ranks->size() : 1, rank = is_cut ? packing_.ranks->rank() : 0;
  const at::Tensor all = is_cut ? packing_.ranks->gathered(blocks.scales, name_) : blocks.scales;
  const at::Tensor of_ranks = all.view({num_ranks, scales_.size(0), scales_.size(1)});
  for (const Matrix& matrix : matrices_) {
    const auto in_order = [&](const at::Tensor& of_rank) {  // own inverse; rows first if columns are cut
      return packing_.cut_dim == 1 ? of_rank.transpose(0, 1) : of_rank;
    };
    const at::Tensor whole = in_order(of_ranks.narrow(1, matrix.first_row, matrix.rows));
    const ops::Nf4Scales packed = ops::nf4_quantise_scales(whole.reshape({-1}));
    scales_.narrow(0, matrix.first_row, matrix.rows).copy_(in_order(packed.codes.view(whole.sizes())).select(0, rank));
    groups_.narrow(0, matrix.first_local_group, matrix.num_groups)
        .copy_(packed.groups.narrow(0, matrix.first_group, matrix.num_groups));
  }
}

at::Tensor PackedWeight::unpacked() const {
  return ops::nf4_dequantise({codes_, scales_, first_blocks_, groups_, levels_}, columns_, dtype_, packing_.kernels);
}

int64_t PackedWeight::num_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor* tensor : {&codes_, &scales_, &first_blocks_, &groups_, &levels_}) {
    bytes += static_cast<int64_t>(tensor->nbytes());
  }
  return bytes;
}

}  // namespace megalith
