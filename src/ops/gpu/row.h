// How threads share a matrix's rows, in registers if a row fits, and sum over rows and columns.
//
// A row's team is a part of a wave, so that a block has many rows, or a block. Threads take vectors of 16 bytes in
// turn: a wave accesses one run of memory. Rows too long, unaligned, or of doubles (for tests) are read by element, as
// often as needed.
#pragma once

#include "ops/gpu/block_sum.h"
#include "ops/gpu/element.h"
#include "ops/gpu/vector.h"

namespace megalith::ops::gpu {

// kElements: most of a row per thread, in registers; 0: any number, in memory.
template <typename Element, int kElements_, bool kIsOfLanes_>
struct RowKind {
  using T = Element;
  using W = Wide<T>;
  static constexpr int kElements = kElements_;
  static constexpr bool kIsInRegisters = kElements > 0;
  static constexpr bool kIsOfLanes = kIsOfLanes_;
  static constexpr int kWidth = kIsInRegisters ? kVectorBytes / static_cast<int>(sizeof(T)) : 1;
  static constexpr int kSlots = kIsInRegisters ? kElements / kWidth : 1;  // vectors per thread
  static constexpr int kMostThreads = kElements >= 16 ? 512 : 256;        // per block
  using Values = Vector<T, kWidth>;
};

// Threads of a row; rows that a block takes at once.
struct RowShape {
  int team_size, teams;

  int threads() const { return team_size * teams; }
};

// Calls body(RowKind, RowShape); a thread keeps at most kMostElements.
template <typename T, int kMostElements, typename Body>
void with_row_kind(int64_t columns, bool is_aligned, Body&& body) {
  const auto threads_for = [&](int elements) {
    return static_cast<int>((columns + 64 * elements - 1) / (64 * elements)) * 64;
  };
  if constexpr (sizeof(T) < sizeof(double)) {
    if (is_aligned && columns % (kVectorBytes / static_cast<int64_t>(sizeof(T))) == 0) {
      if (columns <= 8 * 32) {
        int lanes = 1;
        while (lanes * 8 < columns) lanes *= 2;
        return body(RowKind<T, 8, true>{}, RowShape{lanes, 256 / lanes});
      }
      if (columns <= 8 * 256) return body(RowKind<T, 8, false>{}, RowShape{threads_for(8), 1});
      if constexpr (kMostElements == 16) {
        if (columns <= 16 * 512) return body(RowKind<T, 16, false>{}, RowShape{threads_for(16), 1});
      } else {
        static_assert(kMostElements == 32);
        if (columns <= 16 * 256) return body(RowKind<T, 16, false>{}, RowShape{threads_for(16), 1});
        if (columns <= 32 * 512) return body(RowKind<T, 32, false>{}, RowShape{threads_for(32), 1});
      }
    }
  }
  body(RowKind<T, 0, false>{}, RowShape{columns < 256 ? threads_for(1) : 256, 1});
}

template <typename Kind>
struct RowTeam {
  int size, member, index, count;  // size: threads; member: this one; index of count: the block's teams

  __device__ explicit RowTeam(int team_size)
      : size(team_size),
        member(static_cast<int>(threadIdx.x) % team_size),
        index(Kind::kIsOfLanes ? static_cast<int>(threadIdx.x) / team_size : 0),
        count(Kind::kIsOfLanes ? static_cast<int>(blockDim.x) / team_size : 1) {}

  // body(slot, column) for each vector of this thread.
  template <typename Body>
  __device__ void for_each_vector(int64_t columns, Body&& body) const {
    if constexpr (Kind::kIsInRegisters) {
      MEGALITH_UNROLL
      for (int slot = 0; slot < Kind::kSlots; ++slot) {
        const int column = (slot * size + member) * Kind::kWidth;
        if (column < columns) body(slot, column);
      }
    } else {
      for (int64_t column = member; column < columns; column += size) body(0, column);
    }
  }

  // Called by all threads of the block, even without a row.
  template <int kCount>
  __device__ void sum(typename Kind::W (&values)[kCount]) const {
    if constexpr (Kind::kIsOfLanes) {
      MEGALITH_UNROLL
      for (int i = 0; i < kCount; ++i) values[i] = combine_lanes(Sum{}, values[i], size);
    } else {
      combine_block(Sum{}, values);
    }
  }
};

// A thread's vectors of one row.
template <typename Kind>
class KeptRow {
 public:
  using Values = typename Kind::Values;

  // Loads all before using the first: memory answers them together.
  __device__ KeptRow(const RowTeam<Kind>& team, int64_t columns, const typename Kind::T* row) : row_(row) {
    if constexpr (Kind::kIsInRegisters) {
      team.for_each_vector(columns,
                           [&](int slot, int64_t column) { vectors_[slot] = load_vector<Kind::kWidth>(row + column); });
    }
  }

  __device__ Values get(int slot, int64_t column) const {
    if constexpr (Kind::kIsInRegisters) {
      return vectors_[slot];
    } else {
      return load_vector<Kind::kWidth>(row_ + column);
    }
  }
  // Adds another row, rounded; the result also goes to `sum`.
  __device__ void add(const RowTeam<Kind>& team, int64_t columns, const typename Kind::T* row, typename Kind::T* sum) {
    const KeptRow added(team, columns, row);
    team.for_each_vector(columns, [&](int slot, int64_t column) {
      const Values a = get(slot, column), b = added.get(slot, column);
      Values both;
      MEGALITH_UNROLL
      for (int i = 0; i < Kind::kWidth; ++i) both[i] = Rounding<typename Kind::T>::of(widen(a[i]) + widen(b[i]));
      store_vector(sum + column, both);
      if constexpr (Kind::kIsInRegisters) vectors_[slot] = both;
    });
    row_ = sum;
  }

 private:
  const typename Kind::T* row_;
  Values vectors_[Kind::kSlots];
};

// A block's, over the rows that its teams take in turn.
template <typename Kind>
class ColumnSums {
 public:
  using W = typename Kind::W;

  // sums: one per column, undefined before finish().
  __device__ ColumnSums(const RowTeam<Kind>& team, int64_t columns, W* sums) : sums_(sums) {
    if constexpr (Kind::kIsInRegisters) {
      MEGALITH_UNROLL
      for (int i = 0; i < Kind::kElements; ++i) mine_[i] = 0;
    } else {
      team.for_each_vector(columns, [&](int, int64_t column) { sums[column] = 0; });
    }
  }

  __device__ void add(int slot, int64_t column, int i, W value) {
    if constexpr (Kind::kIsInRegisters) {
      mine_[slot * Kind::kWidth + i] += value;
    } else {
      sums_[column] += value;
    }
  }

  // All of the block's threads call it.
  __device__ void finish(const RowTeam<Kind>& team, int64_t columns) {
    if constexpr (Kind::kIsOfLanes) {
      add_teams(team, columns);
    } else if constexpr (Kind::kIsInRegisters) {
      team.for_each_vector(columns, [&](int slot, int64_t column) {
        MEGALITH_UNROLL
        for (int i = 0; i < Kind::kWidth; i += 4) {
          Vector<W, 4> four;
          MEGALITH_UNROLL
          for (int j = 0; j < 4; ++j) four[j] = mine_[slot * Kind::kWidth + i + j];
          store_vector(sums_ + column + i, four);
        }
      });
    }
  }

 private:
  // Teams took different rows of the same columns.
  __device__ void add_teams(const RowTeam<Kind>& team, int64_t columns) {
    MEGALITH_SHARED(W, of_threads, Kind::kElements * Kind::kMostThreads);
    __syncthreads();  // another object's may be read
    MEGALITH_UNROLL
    for (int i = 0; i < Kind::kElements; ++i)
      of_threads[i * Kind::kMostThreads + static_cast<int>(threadIdx.x)] = mine_[i];
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < columns; column += static_cast<int>(blockDim.x)) {
      const int vector = column / Kind::kWidth, slot = vector / team.size, member = vector % team.size;
      const W* of_column = of_threads + (slot * Kind::kWidth + column % Kind::kWidth) * Kind::kMostThreads + member;
      W sum = 0;
      for (int t = 0; t < team.count; ++t) sum += of_column[t * team.size];
      sums_[column] = sum;
    }
  }

  W* sums_;
  W mine_[Kind::kIsInRegisters ? Kind::kElements : 1];
};

// Null without a matrix.
template <typename T, typename Pointer>
__device__ auto row_at(Pointer* matrix, int64_t start) {
  using Typed = std::conditional_t<std::is_const_v<Pointer>, const T*, T*>;
  return matrix == nullptr ? nullptr : static_cast<Typed>(matrix) + start;
}

// sum[column] = parts[0][column] + …, in fixed order.
inline constexpr int kSumColumns = 32, kSumSlices = 8;

template <typename W>
__global__ void __launch_bounds__(kSumColumns* kSumSlices)
    add_parts(int64_t num_parts, int64_t stride, int64_t columns, const W* parts, W* sum) {
  MEGALITH_SHARED(W, of_slices, kSumColumns * kSumSlices);
  const int place = static_cast<int>(threadIdx.x) % kSumColumns, slice = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + place;
  W mine = 0;
  if (column < columns) {
    MEGALITH_UNROLL_BY(8)
    for (int64_t part = slice; part < num_parts; part += kSumSlices) mine += parts[part * stride + column];
  }
  of_slices[threadIdx.x] = mine;
  __syncthreads();
  if (slice != 0 || column >= columns) return;
  for (int s = 1; s < kSumSlices; ++s) mine += of_slices[s * kSumColumns + place];
  sum[column] = mine;
}

template <typename W>
void launch_add_parts(const char* name, int64_t num_parts, int64_t stride, int64_t columns, const W* parts, W* sum,
                      Stream stream) {
  const auto blocks = static_cast<unsigned>((columns + kSumColumns - 1) / kSumColumns);
  launch(name, add_parts<W>, blocks, kSumColumns * kSumSlices, 0, stream, num_parts, stride, columns, parts, sum);
}

}  // namespace megalith::ops::gpu
