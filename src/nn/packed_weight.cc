#include "nn/packed_weight.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "comm/group.h"
#include "core/error.h"
#include "ops/nf4/nf4.h"

namespace megalith {
namespace {

constexpr int64_t kGroupBytes = 8;  // two fp32 numbers
// Every part, and the weight after it in a buffer of several, begins where fp32 may.
int64_t aligned(int64_t bytes) { return div_up(bytes, int64_t{16}) * 16; }

}  // namespace

PackedWeight::PackedWeight(const std::string& name, const Placement& placement, const ParameterOptions& options)
    : name_(name), packing_(*options.packing), dtype_(options.dtype) {
  MEGALITH_CHECK(placement.local_shape.size() == 2, "{}: only matrices are packed", name);
  rows_ = placement.local_shape[0];
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
  first_block_of_row_.resize(static_cast<size_t>(rows_), 0);
  for (const Piece& piece : placement.pieces) {
    const int64_t first_row = piece.local.offset[0], rows = piece.local.extent[0];
    MEGALITH_CHECK(piece.local.extent[1] == columns_, "{}: a piece of {} columns of {}", name, piece.local.extent[1],
                   columns_);
    if (rows == 0) continue;
    const int64_t first_block = rank * (are_columns_cut ? blocks_here : rows * blocks_of_row);
    const int64_t last_block = first_block + (rows - 1) * blocks_of_row + blocks_here - 1;
    const int64_t first_group = first_block / ops::kNf4ScaleGroup;
    const int64_t groups_here = last_block / ops::kNf4ScaleGroup - first_group + 1;
    MEGALITH_CHECK((num_groups_ + groups_here) * ops::kNf4ScaleGroup <= std::numeric_limits<int32_t>::max(),
                   "{} has more blocks than are counted", name);
    for (int64_t row = 0; row < rows; ++row) {
      first_block_of_row_[static_cast<size_t>(first_row + row)] = static_cast<int32_t>(
          (num_groups_ - first_group) * ops::kNf4ScaleGroup + first_block + row * blocks_of_row);
    }
    matrices_.push_back({first_row, rows, num_groups_, groups_here, first_group});
    num_groups_ += groups_here;
  }
  const int64_t num_bytes = aligned(num_groups_ * kGroupBytes) + aligned(rows_ * blocks_here) +
                            aligned(rows_ * div_up(columns_, int64_t{2}));
  bytes_ = at::zeros({num_bytes}, at::TensorOptions().dtype(at::kByte).device(options.device));
  make_tables(options.device);
}

void PackedWeight::make_tables(at::Device device) {
  first_blocks_ = at::tensor(first_block_of_row_, at::kInt).to(device);
  levels_ = ops::nf4_scale_levels().to(device);
}

void PackedWeight::place_in(const at::Tensor& memory, PackedShare share) {
  MEGALITH_CHECK(memory.sizes() == bytes_.sizes() && memory.scalar_type() == at::kByte, "{}: {} for {} packed bytes",
                 name_, memory.numel(), bytes_.numel());
  bytes_ = memory;
  share_ = std::move(share);
  make_tables(memory.device());
}

PackedWeight::Views PackedWeight::views(const at::Tensor& bytes) const {
  const int64_t blocks = div_up(columns_, ops::kNf4Block), pairs = div_up(columns_, int64_t{2});
  const int64_t scales = aligned(num_groups_ * kGroupBytes), codes = scales + aligned(rows_ * blocks);
  return {.groups = bytes.narrow(0, 0, num_groups_ * kGroupBytes).view(at::kFloat).view({num_groups_, 2}),
          .scales = bytes.narrow(0, scales, rows_ * blocks).view({rows_, blocks}),
          .codes = bytes.narrow(0, codes, rows_ * pairs).view({rows_, pairs})};
}

void PackedWeight::pack(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = is_elsewhere() ? at::zeros(bytes_.sizes(), bytes_.options()) : bytes_;
  const Views to = views(bytes);
  const ops::Nf4Blocks blocks = ops::nf4_quantise(values, packing_.kernels);
  to.codes.copy_(blocks.codes);
  const bool is_cut = packing_.ranks != nullptr && packing_.ranks->size() > 1;
  const int64_t num_ranks = is_cut ? packing_.ranks->size() : 1, rank = is_cut ? packing_.ranks->rank() : 0;
  const at::Tensor all = is_cut ? packing_.ranks->gathered(blocks.scales, name_) : blocks.scales;
  const at::Tensor of_ranks = all.view({num_ranks, to.scales.size(0), to.scales.size(1)});
  for (const Matrix& matrix : matrices_) {
    const auto in_order = [&](const at::Tensor& of_rank) {  // own inverse; rows first if columns are cut
      return packing_.cut_dim == 1 ? of_rank.transpose(0, 1) : of_rank;
    };
    const at::Tensor whole = in_order(of_ranks.narrow(1, matrix.first_row, matrix.rows));
    const ops::Nf4Scales packed = ops::nf4_quantise_scales(whole.reshape({-1}));
    const at::Tensor codes = in_order(packed.codes.view(whole.sizes())).select(0, rank);
    to.scales.narrow(0, matrix.first_row, matrix.rows).copy_(codes);
    to.groups.narrow(0, matrix.first_local_group, matrix.num_groups)
        .copy_(packed.groups.narrow(0, matrix.first_group, matrix.num_groups));
  }
  if (is_elsewhere()) share_.keep(bytes);
}

at::Tensor PackedWeight::unpacked() const {
  at::Tensor values;
  const auto read = [&] {
    const Views from = views(bytes_);
    values = ops::nf4_dequantise({from.codes, from.scales, first_blocks_, from.groups, levels_}, columns_, dtype_,
                                 packing_.kernels);
  };
  if (is_elsewhere())
    share_.while_here(read);
  else
    read();
  return values;
}

int64_t PackedWeight::num_bytes() const {
  return static_cast<int64_t>(bytes_.nbytes() + first_blocks_.nbytes() + levels_.nbytes());
}

}  // namespace megalith
