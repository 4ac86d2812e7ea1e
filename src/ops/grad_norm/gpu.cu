// A block per piece of a tensor, then one that adds pieces in order. A table of tensors is a launch's argument: nothing
// is copied to the device.
#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/gpu/vector.h"
#include "ops/grad_norm/kernel.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kThreads = 256, kThreadsOfTotal = 1024;

// One dtype; launch arguments are limited to 4 KiB.
constexpr int kMostTensors = 160;
struct TensorTable {
  int num_tensors;
  int64_t num_blocks;
  struct {
    const void* values;
    int64_t count, first_block;
  } tensors[kMostTensors];
};
static_assert(sizeof(TensorTable) <= 4000);

// In groups of 16 bytes regardless of alignment: addresses change no sum.
template <typename T>
__global__ void sum_pieces(TensorTable table, double* squares, double* zeros) {
  constexpr int kCount = kVectorBytes / sizeof(T);
  const int64_t block = blockIdx.x;
  int tensor = 0, end = table.num_tensors;  // the last tensor that begins by this block
  while (tensor + 1 < end) {
    const int middle = (tensor + end) / 2;
    if (table.tensors[middle].first_block <= block) {
      tensor = middle;
    } else {
      end = middle;
    }
  }
  const int64_t first = (block - table.tensors[tensor].first_block) * kSquaredPieceElements;
  const T* const values = static_cast<const T*>(table.tensors[tensor].values) + first;
  const int64_t left = table.tensors[tensor].count - first;
  const int count = static_cast<int>(left < kSquaredPieceElements ? left : kSquaredPieceElements);
  const bool is_aligned = reinterpret_cast<uintptr_t>(values) % kVectorBytes == 0;
  double square = 0;
  int num_zeros = 0;
  const auto add = [&](T element) {
    const double value = widen(element);
    square += value * value;
    num_zeros += value == 0 ? 1 : 0;
  };
  for (int i = static_cast<int>(threadIdx.x) * kCount; i < count; i += kThreads * kCount) {
    if (is_aligned && i + kCount <= count) {
      const auto elements = load_vector<kCount>(values + i);
      MEGALITH_UNROLL
      for (int c = 0; c < kCount; ++c) add(elements[c]);
    } else {
      for (int c = 0; c < kCount && i + c < count; ++c) add(values[i + c]);
    }
  }
  square = sum_over_block(square);
  num_zeros = sum_over_block(num_zeros);
  if (threadIdx.x != 0) return;
  squares[block] = square;
  zeros[block] = num_zeros;
}

__global__ void add_pieces(int64_t num_pieces, const double* squares, const double* zeros, double* sums) {
  double values[] = {0, 0};
  for (int64_t i = threadIdx.x; i < num_pieces; i += kThreadsOfTotal) {
    values[0] += squares[i];
    values[1] += zeros[i];  // exact below 2^53
  }
  combine_block(Sum{}, values);
  if (threadIdx.x != 0) return;
  sums[0] = values[0];
  sums[1] = values[1];
}

}  // namespace

void gradient_sums(const GradientSums& a, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  int64_t num_pieces = 0, done = 0;
  for (int64_t i = 0; i < a.num_tensors; ++i) num_pieces += num_squared_pieces(a.tensors[i].count);
  double *const squares = a.scratch, *const zeros = a.scratch + num_pieces;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBFloat16, Dtype::kFloat16}) {
    TensorTable table{};
    const auto launch_table = [&] {
      if (table.num_blocks == 0) return;  // launches need blocks
      with_type(dtype, [&](auto zero) {
        launch("gradient_sums", sum_pieces<decltype(zero)>, static_cast<unsigned>(table.num_blocks), kThreads, 0, queue,
               table, squares + done, zeros + done);
      });
      done += table.num_blocks;
      table = {};
    };
    for (int64_t i = 0; i < a.num_tensors; ++i) {
      const SquaredPiece& tensor = a.tensors[i];
      if (tensor.dtype != dtype || tensor.count == 0) continue;
      table.tensors[table.num_tensors++] = {tensor.values, tensor.count, table.num_blocks};
      table.num_blocks += num_squared_pieces(tensor.count);
      if (table.num_tensors == kMostTensors) launch_table();
    }
    launch_table();
  }
  launch("gradient_sums, total", add_pieces, 1, kThreadsOfTotal, 0, queue, num_pieces, squares, zeros, a.sums);
}

}  // namespace megalith::ops::gpu
