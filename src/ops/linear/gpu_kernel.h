// Kernels of the bias' gradient and the embedding.
#pragma once

#include <cstdint>

#include "ops/dtype.h"

namespace megalith::ops::gpu {

// y[i] = table[ids[i] - start], or zeros outside of the table.
struct GatherRows {
  int64_t num_ids, row_bytes;
  int64_t element_bytes;  // 2, 4 or 8
  const int64_t* ids;
  int64_t start, num_rows;
  const void* table;
  int64_t table_stride_bytes;
  void* y;
};
void gather_rows(const GatherRows& a, void* stream);

// dw[id - start] += dy[order[i]] + dy[order[i + 1]] + …, in order, over each id's i in `sorted`; none for ids outside
// of the table.
struct ScatterRows {
  Dtype dtype;
  int64_t num_ids, columns;
  const int64_t *sorted, *order;  // ids in order; their tokens
  int64_t start, num_rows;
  const void* dy;
  int64_t dy_stride;
  void* dw;  // wide
  int64_t dw_stride;
};
void scatter_rows(const ScatterRows& a, void* stream);

// db += dy[0] + …: runs of rows, then their sums.
struct SumRows {
  Dtype dtype;
  int64_t rows, columns, stride;
  const void* dy;
  void* db;     // wide
  void* parts;  // (runs, columns) wide
  int64_t runs;
};
// From sizes only: sums are reproducible; enough to keep a chip busy.
int64_t runs_of_rows(int64_t rows, int64_t columns);
void sum_rows(const SumRows& a, void* stream);

}  // namespace megalith::ops::gpu
