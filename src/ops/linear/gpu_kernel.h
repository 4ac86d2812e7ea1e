// What the GPU kernels of the bias's gradient and of the embedding get. Free of torch's headers.
#pragma once

#include <cstdint>

#include "ops/dtype.h"

// Pointers on the device, and the stream as its native handle.
namespace megalith::ops::gpu {

// y[i] = table[ids[i] - start], or zeros where that is no row of the table. Bytes that must move: y, as much of the
// table, and 8 for each id.
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

// dw[id - start] = dw[id - start] + dy[order[i]] + dy[order[i + 1]] + …, one after the other, over the i of each id in
// `sorted`; others than the table's ids add nothing. Bytes that must move: dy, 16 for each id, and every row of dw that
// has an id, read and written.
struct ScatterRows {
  Dtype dtype;
  int64_t num_ids, columns;
  const int64_t *sorted, *order;  // ids in order; which token each of them is of
  int64_t start, num_rows;
  const void* dy;
  int64_t dy_stride;
  void* dw;  // wide
  int64_t dw_stride;
};
void scatter_rows(const ScatterRows& a, void* stream);

// db = db + dy[0] + …: runs of rows are added up first, then these. Bytes that must move: dy, read; db, read and
// written.
struct SumRows {
  Dtype dtype;
  int64_t rows, columns, stride;
  const void* dy;
  void* db;     // wide
  void* parts;  // (runs, columns) wide, written before it is read
  int64_t runs;
};
// How many runs keep a chip busy: they follow from the sizes only, so sums repeat.
int64_t runs_of_rows(int64_t rows, int64_t columns);
void sum_rows(const SumRows& a, void* stream);

}  // namespace megalith::ops::gpu
