#include "optim/matrix_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace megalith {
namespace {

int size_of(const Group* group) { return group == nullptr ? 1 : group->size(); }

// The slice's elements on shard rank r; empty, at its beginning, if none.
FlatRange held_by(const ExchangedMatrix& one, int r) {
  const FlatRange& slice = one.matrix.range;
  if (!one.runs) return slice;
  const FlatRange run = one.runs->of(r);
  const FlatRange held = {std::max(slice.begin, run.begin), std::min(slice.end, run.end)};
  return held.begin < held.end ? held : FlatRange{slice.begin, slice.begin};
}

// 1-d messages to every rank of a group, and the replies.
class Parcels {
 public:
  Parcels(Group& group, const at::TensorOptions& like)
      : group_(group), like_(like), to_(size()), in_splits_(size()), out_splits_(size()) {}

  void send(int rank, const at::Tensor& values) {
    to_[static_cast<size_t>(rank)].push_back(values.reshape({-1}));
    in_splits_[static_cast<size_t>(rank)] += values.numel();
  }
  void expect(int rank, int64_t num_elements) { out_splits_[static_cast<size_t>(rank)] += num_elements; }

  void exchange(std::string_view label) {
    std::vector<at::Tensor> in;
    for (const auto& parcels : to_) in.insert(in.end(), parcels.begin(), parcels.end());
    received_ = group_.exchanged(in.empty() ? at::empty({0}, like_) : at::cat(in), out_splits_, in_splits_, label);
    next_.assign(size(), 0);
    for (size_t r = 1; r < size(); ++r) next_[r] = next_[r - 1] + out_splits_[r - 1];
  }
  // The next elements from this rank, in its sending order.
  at::Tensor take(int rank, int64_t num_elements) {
    int64_t& next = next_[static_cast<size_t>(rank)];
    next += num_elements;
    return received_.narrow(0, next - num_elements, num_elements);
  }

 private:
  size_t size() const { return static_cast<size_t>(group_.size()); }

  Group& group_;
  at::TensorOptions like_;
  std::vector<std::vector<at::Tensor>> to_;
  std::vector<int64_t> in_splits_, out_splits_, next_;
  at::Tensor received_;
};

using Matrices = std::vector<const ExchangedMatrix*>;
using Tensors = std::vector<at::Tensor>;

at::Tensor as_slice(const at::Tensor& flat, const SlicedMatrix& matrix) {
  return flat.view({matrix.local_rows(), matrix.local_columns});
}

// Assembles the slices of `mine` from the shard group's runs.
Tensors assemble_slices(Group& shard, const std::vector<ExchangedMatrix>& all, const Matrices& mine,
                        const at::TensorOptions& like, const MatrixExchange::Read& read) {
  Parcels parcels(shard, like);
  for (const ExchangedMatrix& one : all) {
    const FlatRange held = held_by(one, shard.rank());
    if (held.size() > 0) parcels.send(one.owner_shard, read(one, held).to(like));
  }
  for (const ExchangedMatrix* one : mine) {
    for (int r = 0; r < shard.size(); ++r) parcels.expect(r, held_by(*one, r).size());
  }
  parcels.exchange("runs of matrices");
  Tensors slices;
  for (const ExchangedMatrix* one : mine) {
    const at::Tensor flat = at::empty({one->matrix.range.size()}, like);
    for (int r = 0; r < shard.size(); ++r) {
      const FlatRange held = held_by(*one, r);
      flat.narrow(0, held.begin - one->matrix.range.begin, held.size()).copy_(parcels.take(r, held.size()));
    }
    slices.push_back(as_slice(flat, one->matrix));
  }
  return slices;
}

void return_runs(Group& shard, const std::vector<ExchangedMatrix>& all, const Matrices& mine, const Tensors& slices,
                 const at::TensorOptions& like, const MatrixExchange::Write& write) {
  Parcels parcels(shard, like);
  for (size_t i = 0; i < mine.size(); ++i) {
    const at::Tensor flat = slices[i].view({-1});
    for (int r = 0; r < shard.size(); ++r) {
      const FlatRange held = held_by(*mine[i], r);
      parcels.send(r, flat.narrow(0, held.begin - mine[i]->matrix.range.begin, held.size()));
    }
  }
  for (const ExchangedMatrix& one : all) parcels.expect(one.owner_shard, held_by(one, shard.rank()).size());
  parcels.exchange("updates of runs");
  for (const ExchangedMatrix& one : all) {
    const FlatRange held = held_by(one, shard.rank());
    if (held.size() > 0) write(one, held, parcels.take(one.owner_shard, held.size()));
  }
}

bool is_cut(const ExchangedMatrix& one) { return one.matrix.cut != SlicedMatrix::Cut::kNone; }

// Replaces each slice by its part of the whole matrix's result.
void compute_wholes(Group& group, const Matrices& mine, const at::TensorOptions& like,
                    const MatrixExchange::Compute& compute, Tensors& slices) {
  Matrices cut;
  for (const ExchangedMatrix* one : mine) {
    if (is_cut(*one)) cut.push_back(one);
  }
  Parcels there(group, like), back(group, like);
  for (size_t i = 0; i < mine.size(); ++i) {
    if (is_cut(*mine[i])) there.send(mine[i]->owner_slice, slices[i]);
  }
  for (const ExchangedMatrix* one : cut) {
    for (int r = 0; one->owner_slice == group.rank() && r < group.size(); ++r)
      there.expect(r, one->matrix.range.size());
  }
  if (!cut.empty()) there.exchange("slices of matrices");
  for (size_t i = 0; i < mine.size(); ++i) {
    const SlicedMatrix& matrix = mine[i]->matrix;
    if (!is_cut(*mine[i])) {
      slices[i] = compute(*mine[i], slices[i]).contiguous();
    } else if (mine[i]->owner_slice == group.rank()) {
      const at::Tensor whole = at::empty({matrix.rows, matrix.columns}, like);
      for (int r = 0; r < group.size(); ++r) {
        matrix.put_slice(as_slice(there.take(r, matrix.range.size()), matrix), r, whole);
      }
      const at::Tensor update = compute(*mine[i], whole);
      for (int r = 0; r < group.size(); ++r) back.send(r, matrix.take_slice(update, r));
    }
  }
  if (cut.empty()) return;
  for (const ExchangedMatrix* one : cut) back.expect(one->owner_slice, one->matrix.range.size());
  back.exchange("updates of slices");
  for (size_t i = 0; i < mine.size(); ++i) {
    if (is_cut(*mine[i]))
      slices[i] = as_slice(back.take(mine[i]->owner_slice, mine[i]->matrix.range.size()), mine[i]->matrix);
  }
}

}  // namespace

// Matrices of one kind, while batching.
struct MatrixExchange::Class {
  std::vector<std::vector<double>> load;  // [shard rank][slice rank]
  Batch open;
  int64_t open_elements = 0;

  bool fits(const Group* shard, const Group* slices, const at::TensorOptions& like) const {
    return open.shard == shard && open.slices == slices && open.like.dtype() == like.dtype();
  }
  Batch empty_batch() const { return {.shard = open.shard, .slices = open.slices, .like = open.like, .matrices = {}}; }
};

MatrixExchange::MatrixExchange(const DataParallel& data, const Groups& groups,
                               const std::function<bool(const Parameter&)>& takes, const Rules& rules) {
  std::vector<std::pair<Parameter*, std::optional<ParameterRuns>>> taken;
  for (const ParameterRuns& runs : data.runs()) {
    if (takes(*runs.parameter)) taken.emplace_back(runs.parameter, runs);
  }
  if (data.runs().empty()) {
    for (const OwnedPart& part : data.parts()) {
      if (takes(*part.parameter)) taken.emplace_back(part.parameter, std::nullopt);
    }
  }
  std::vector<Class> classes;
  for (const auto& [parameter, runs] : taken) {
    Group* const shard = runs ? runs->group : nullptr;
    Group* const slices = &slice_group(*parameter, groups);
    const auto like = at::TensorOptions(parameter->value().device()).dtype(rules.dtype(*parameter));
    auto found =
        std::find_if(classes.begin(), classes.end(), [&](const Class& one) { return one.fits(shard, slices, like); });
    if (found == classes.end()) {
      const std::vector<double> none(static_cast<size_t>(slices->size()));
      found = classes.insert(classes.end(), {.load = std::vector(static_cast<size_t>(size_of(shard)), none),
                                             .open = {.shard = shard, .slices = slices, .like = like, .matrices = {}}});
    }
    for (SlicedMatrix& matrix : sliced_matrices(*parameter, slices->rank(), slices->size(), rules.joins_qkv)) {
      add(*found, {.parameter = parameter, .matrix = std::move(matrix), .runs = runs}, rules);
    }
  }
  for (Class& one : classes) {
    if (!one.open.matrices.empty()) batches_.push_back(std::move(one.open));
  }
}

// To the least loaded rank that holds a part.
void MatrixExchange::assign(Class& one, ExchangedMatrix& matrix) {
  std::optional<double> least;
  for (int s = 0; s < size_of(one.open.shard); ++s) {
    if (held_by(matrix, s).size() == 0) continue;
    for (int t = 0; t < (is_cut(matrix) ? one.open.slices->size() : 1); ++t) {
      const double load = one.load[static_cast<size_t>(s)][static_cast<size_t>(t)];
      if (least && load >= *least) continue;
      least = load;
      matrix.owner_shard = s;
      matrix.owner_slice = t;
    }
  }
  MEGALITH_CHECK(least.has_value(), "nobody holds {}", matrix.matrix.name);
  const auto rows = static_cast<double>(matrix.matrix.rows), columns = static_cast<double>(matrix.matrix.columns);
  auto& loads = one.load[static_cast<size_t>(matrix.owner_shard)];
  for (size_t t = 0; t < loads.size(); ++t) {
    if (!is_cut(matrix) || static_cast<int>(t) == matrix.owner_slice)
      loads[t] += rows * columns * std::min(rows, columns);
  }
}

void MatrixExchange::add(Class& one, ExchangedMatrix matrix, const Rules& rules) {
  assign(one, matrix);
  const bool is_whole_there = held_by(matrix, matrix.owner_shard) == matrix.matrix.range;
  one.open.crosses_shards = one.open.crosses_shards || !is_whole_there;
  one.open_elements += matrix.matrix.rows * matrix.matrix.columns;
  one.open.matrices.push_back(std::move(matrix));
  if (one.open_elements >= rules.batch_elements * size_of(one.open.shard) * one.open.slices->size()) {
    batches_.push_back(std::exchange(one.open, one.empty_batch()));
    one.open_elements = 0;
  }
}

std::vector<const ExchangedMatrix*> MatrixExchange::matrices() const {
  std::vector<const ExchangedMatrix*> all;
  for (const Batch& batch : batches_) {
    for (const ExchangedMatrix& one : batch.matrices) all.push_back(&one);
  }
  return all;
}

void MatrixExchange::run(const Read& read, const Compute& compute, const Write& write) const {
  for (const Batch& batch : batches_) run_batch(batch, read, compute, write);
}

void MatrixExchange::run_batch(const Batch& batch, const Read& read, const Compute& compute, const Write& write) {
  const int shard_rank = batch.shard == nullptr ? 0 : batch.shard->rank();
  Matrices mine;  // slices assembled here; the same on all ranks of batch.slices
  for (const ExchangedMatrix& one : batch.matrices) {
    if (one.owner_shard == shard_rank) mine.push_back(&one);
  }
  Tensors slices;
  if (batch.crosses_shards) {
    slices = assemble_slices(*batch.shard, batch.matrices, mine, batch.like, read);
  } else {
    for (const ExchangedMatrix* one : mine) {
      slices.push_back(as_slice(read(*one, one->matrix.range).to(batch.like).reshape({-1}), one->matrix));
    }
  }
  compute_wholes(*batch.slices, mine, batch.like, compute, slices);
  if (batch.crosses_shards) {
    return_runs(*batch.shard, batch.matrices, mine, slices, batch.like, write);
  } else {
    for (size_t i = 0; i < mine.size(); ++i) write(*mine[i], mine[i]->matrix.range, slices[i].view({-1}));
  }
}

}  // namespace megalith
