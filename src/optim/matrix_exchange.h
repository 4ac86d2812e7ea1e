// Gives every rank its part of an update that is computed from whole matrices, wherever the matrix lies:
//
//   run of a rank (ZeRO-1, FSDP) ──▶ slice of the matrix (tp, etp) ──▶ whole matrix ──compute──▶ slice ──▶ run
//              all-to-all of the shard group        all-to-all of tp           and the same way back
//
// Each matrix is computed by one rank among those that hold a part of it, whichever has least to do so far; all ranks
// find that out by the same arithmetic. So an element travels twice, and the products are shared out: gathering every
// matrix on every rank would move as many copies as there are ranks, and compute each as often. Replicas (along data
// parallelism that is not sharded) compute the same and exchange nothing.
// What is computed sees the same bits on every layout, and so gives the same.
//
// Matrices go in batches, several in one collective, so that what is whole at a time stays small.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "optim/matrices.h"
#include "parallel/data_parallel.h"

namespace megalith {

struct ExchangedMatrix {
  const Parameter* parameter = nullptr;
  SlicedMatrix matrix;
  std::optional<ParameterRuns> runs;  // nothing: each rank has its whole slice
  int owner_shard = 0;                // rank of the shard group that assembles this slice
  int owner_slice = 0;  // rank of the slice group that assembles the whole; all of them when it is not cut
};

class MatrixExchange {
 public:
  struct Rules {
    bool joins_qkv = false;
    // In which dtype a parameter's matrices travel and are computed.
    std::function<at::ScalarType(const Parameter&)> dtype;
    // A batch ends with the matrix that brings it to so many elements for each rank that takes part.
    int64_t batch_elements = 32 << 20;
  };
  // Exchanges the trainable parameters of data that `takes` names. All outlive it; the same on every rank.
  MatrixExchange(const DataParallel& data, const Groups& groups, const std::function<bool(const Parameter&)>& takes,
                 const Rules& rules);

  // read     this rank's elements [range) of the parameter's flattened local tensor, of any shape
  // compute  (rows, columns) contiguous, of Rules::dtype -> the same shape and dtype
  // write    what compute gave, 1-d, for the same elements as read
  // On all ranks together.
  using Read = std::function<at::Tensor(const ExchangedMatrix&, const FlatRange& range)>;
  using Compute = std::function<at::Tensor(const ExchangedMatrix&, const at::Tensor& whole)>;
  using Write = std::function<void(const ExchangedMatrix&, const FlatRange& range, const at::Tensor& values)>;
  void run(const Read& read, const Compute& compute, const Write& write) const;

  // Which matrices there are, in the order in which they go. For tests and reports.
  std::vector<const ExchangedMatrix*> matrices() const;

 private:
  // Matrices that the same groups share, in one dtype: they can travel together.
  struct Batch {
    Group* shard = nullptr;   // null: the parameters are not divided into runs
    Group* slices = nullptr;  // of one rank where nothing is sliced
    at::TensorOptions like;
    bool crosses_shards = false;  // some slice lies on several ranks of the shard group
    std::vector<ExchangedMatrix> matrices;
  };
  struct Class;

  static void assign(Class& one, ExchangedMatrix& matrix);
  void add(Class& one, ExchangedMatrix matrix, const Rules& rules);
  static void run_batch(const Batch& batch, const Read& read, const Compute& compute, const Write& write);

  std::vector<Batch> batches_;
};

}  // namespace megalith
