// Updates from whole matrices whose parts are on several ranks:
//
//   run of a rank (ZeRO-1, FSDP) ──▶ slice of the matrix (tp, etp) ──▶ whole matrix ──compute──▶ slice ──▶ run
//              all-to-all of the shard group        all-to-all of tp           and the same way back
//
// The least loaded rank with a part computes the matrix, an assignment all ranks derive; elements travel twice, and no
// product is computed by all. Replicas compute without exchange. Results are bit-identical on every layout. Matrices
// travel in batches to bound memory.
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
  std::optional<ParameterRuns> runs;  // unset: each rank has its whole slice
  int owner_shard = 0;                // shard rank that assembles this slice
  int owner_slice = 0;                // slice rank that assembles the whole; every rank if it is not sliced
};

class MatrixExchange {
 public:
  struct Rules {
    bool joins_qkv = false;
    std::function<at::ScalarType(const Parameter&)> dtype;
    // Per participating rank; the matrix that reaches it ends a batch.
    int64_t batch_elements = 32 << 20;
  };
  // Trainable parameters selected by `takes`. Arguments outlive it and agree on every rank.
  MatrixExchange(const DataParallel& data, const Groups& groups, const std::function<bool(const Parameter&)>& takes,
                 const Rules& rules);

  // read     this rank's elements [range) of the parameter's flattened local tensor, of any shape
  // compute  (rows, columns) contiguous, of Rules::dtype -> the same shape and dtype
  // write    the result, 1-d, for the elements read
  // Collective.
  using Read = std::function<at::Tensor(const ExchangedMatrix&, const FlatRange& range)>;
  using Compute = std::function<at::Tensor(const ExchangedMatrix&, const at::Tensor& whole)>;
  using Write = std::function<void(const ExchangedMatrix&, const FlatRange& range, const at::Tensor& values)>;
  void run(const Read& read, const Compute& compute, const Write& write) const;

  // In processing order. For tests and reports.
  std::vector<const ExchangedMatrix*> matrices() const;

 private:
  // Matrices of one dtype and the same groups.
  struct Batch {
    Group* shard = nullptr;   // null: no runs
    Group* slices = nullptr;  // a single rank if there are no slices
    at::TensorOptions like;
    bool crosses_shards = false;  // some slice is on several shard ranks
    std::vector<ExchangedMatrix> matrices;
  };
  struct Class;

  static void assign(Class& one, ExchangedMatrix& matrix);
  void add(Class& one, ExchangedMatrix matrix, const Rules& rules);
  static void run_batch(const Batch& batch, const Read& read, const Compute& compute, const Write& write);

  std::vector<Batch> batches_;
};

}  // namespace megalith
