#include "train/adapter_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_state.h"
#include "checkpoint/exchange.h"
#include "checkpoint/replica_share.h"
#include "core/philox.h"
#include "nn/expert_adapter.h"
#include "nn/low_rank_adapter.h"

namespace megalith {
namespace {

using Views = std::multimap<std::string, PieceView>;  // by canonical name

// A random orthonormal basis of the columns of w (m, n), m >= n, that matter most. Source: Halko et al. 2009,
// arXiv:0909.4061, algorithm 4.4, as torch.svd_lowrank.
at::Tensor range_of(const at::Tensor& w, int64_t rank, int64_t num_iterations, uint64_t key) {
  at::Tensor drawn = at::empty({w.size(1), rank}, at::kDouble);
  fill_normal(key, 0, drawn.mutable_data_ptr<double>(), static_cast<uint64_t>(drawn.numel()));
  const auto basis = [](const at::Tensor& columns) { return std::get<0>(at::linalg_qr(columns)); };
  at::Tensor q = basis(at::mm(w, drawn.to(w.options())));
  for (int64_t i = 0; i < num_iterations; ++i) q = basis(at::mm(w, basis(at::mm(w.t(), q))));
  return q;
}

// (U (m, rank), S (rank), V' (rank, n))
std::tuple<at::Tensor, at::Tensor, at::Tensor> largest_values(const at::Tensor& w, int64_t rank,
                                                              const AdapterStart& start, uint64_t key) {
  if (!start.num_iterations) {
    const auto [u, s, vh] = at::linalg_svd(w, /*full_matrices=*/false);
    return {u.narrow(1, 0, rank), s.narrow(0, 0, rank), vh.narrow(0, 0, rank)};
  }
  if (w.size(0) < w.size(1)) {
    const auto [u, s, vh] = largest_values(w.t().contiguous(), rank, start, key);
    return {vh.t(), s, u.t()};
  }
  const at::Tensor q = range_of(w, rank, *start.num_iterations, key);
  const auto [u, s, vh] = at::linalg_svd(at::mm(q.t(), w), /*full_matrices=*/false);
  return {at::mm(q, u), s, vh};
}

// All ranks' matrices, by name, the same on every rank.
std::vector<DecomposedMatrix> matrices_of_all(const BuiltModel& built, Group& world) {
  std::vector<DecomposedMatrix> own;
  for (const auto& chunk : built.chunks) {
    chunk->for_each_module([&](const Module& module) {
      if (const auto* adapter = dynamic_cast<const LowRankAdapter*>(&module)) adapter->list_decomposed(own);
      if (const auto* adapter = dynamic_cast<const ExpertAdapter*>(&module)) adapter->list_decomposed(own);
    });
  }
  std::string text;
  for (const DecomposedMatrix& matrix : own) {
    text += fmt::format("{} {} {} {:.17g} {}", matrix.name, matrix.in_features, matrix.rank, matrix.scale,
                        matrix.parts.size());
    for (const LinearPart& part : matrix.parts) text += fmt::format(" {} {} {}", part.name, part.rows, part.first_row);
    text += "\n";
  }
  std::map<std::string, DecomposedMatrix> all;
  for (const std::string& lines : gather_texts(world, text, "matrices to decompose")) {
    std::istringstream words(lines);
    DecomposedMatrix matrix;
    for (size_t count = 0; words >> matrix.name >> matrix.in_features >> matrix.rank >> matrix.scale >> count;) {
      matrix.parts.resize(count);
      for (LinearPart& part : matrix.parts) words >> part.name >> part.rows >> part.first_row;
      all[matrix.name] = matrix;
    }
  }
  std::vector<DecomposedMatrix> list;
  for (auto& [name, matrix] : all) list.push_back(std::move(matrix));
  return list;
}

class Decomposition {
 public:
  Decomposition(const DataParallel& data, const Groups& groups)
      : world_(*groups.world), device_(data.model_parts().at(0).model.device()) {
    ReplicaShare share(groups);
    for (const CheckpointTensor& tensor : model_tensors(data)) {
      // Each element of a weight once: its replicas would be added.
      const bool is_mine = share.is_mine(tensor.replica_axes, tensor.placement->pipeline_ranks,
                                         static_cast<int64_t>(tensor.local.nbytes()));
      for (PieceView& view : piece_views(*tensor.placement, tensor.local, tensor.range)) {
        wide_ = view.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
        const bool is_adapter = view.piece.name.find(".lora_") != std::string::npos;
        if (is_adapter || is_mine) views_.emplace(view.piece.name, std::move(view));
      }
    }
  }

  // (rows, in), on every rank.
  at::Tensor gather(const DecomposedMatrix& matrix) const {
    const at::Tensor whole = zeros({num_rows(matrix), matrix.in_features});
    for_each_part(matrix, ".weight", [&](const PieceView& view, const Rows& rows) {
      const bool is_transposed = view.piece.is_transposed;
      const Box& box = view.piece.canonical;
      const at::Tensor values = is_transposed ? view.tensor.t() : view.tensor;
      const size_t columns = is_transposed ? 0 : 1;
      whole.narrow(0, rows.in_matrix, rows.count)
          .narrow(1, box.offset[columns], box.extent[columns])
          .copy_(values.narrow(0, rows.in_view, rows.count));
    });
    world_.all_reduce(whole, ReduceOp::kSum, matrix.name).wait();
    return whole;
  }

  // Puts one rank's result (undefined elsewhere) into every rank's share of the matrices.
  void spread(const DecomposedMatrix& matrix, const std::pair<at::Tensor, at::Tensor>& computed) const {
    at::Tensor a = zeros({matrix.rank, matrix.in_features}), b = zeros({num_rows(matrix), matrix.rank});
    if (computed.first.defined()) {
      a.copy_(computed.first);
      b.copy_(computed.second);
    }
    for (const at::Tensor& part : {a, b}) world_.all_reduce(part, ReduceOp::kSum, matrix.name).wait();
    for (const std::string& ending : {std::string(), std::string(kStartEnding)}) {
      const auto [first, last] = views_.equal_range(matrix.name + ".lora_A" + ending + ".weight");
      for (auto found = first; found != last; ++found) {
        const PieceView& view = found->second;
        view.tensor.copy_(slice_box(a, view.piece.canonical, {0, 0}));
      }
      for_each_part(matrix, ".lora_B" + ending + ".weight", [&](const PieceView& view, const Rows& rows) {
        const Box& box = view.piece.canonical;
        view.tensor.narrow(0, rows.in_view, rows.count)
            .copy_(b.narrow(0, rows.in_matrix, rows.count).narrow(1, box.offset[1], box.extent[1]));
      });
    }
  }

 private:
  struct Rows {
    int64_t in_view, in_matrix, count;
  };

  at::Tensor zeros(const std::vector<int64_t>& shape) const {
    return at::zeros(shape, at::TensorOptions().dtype(wide_).device(device_));
  }
  static int64_t num_rows(const DecomposedMatrix& matrix) {
    int64_t rows = 0;
    for (const LinearPart& part : matrix.parts) rows += part.rows;
    return rows;
  }

  // This rank's views of the parts' tensors, with the rows of each that belong to the part.
  template <typename Visit>
  void for_each_part(const DecomposedMatrix& matrix, const std::string& ending, const Visit& visit) const {
    int64_t before = 0;
    for (const LinearPart& part : matrix.parts) {
      const auto [first, last] = views_.equal_range(part.name + ending);
      for (auto found = first; found != last; ++found) {
        const Piece& piece = found->second.piece;
        const size_t d = piece.is_transposed ? 1 : 0;
        const int64_t begin = std::max(piece.canonical.offset[d], part.first_row),
                      end = std::min(piece.canonical.offset[d] + piece.canonical.extent[d], part.first_row + part.rows);
        if (begin >= end) continue;
        visit(found->second, Rows{begin - piece.canonical.offset[d], before + begin - part.first_row, end - begin});
      }
      before += part.rows;
    }
  }

  Group& world_;
  at::Device device_;
  at::ScalarType wide_ = at::kFloat;
  Views views_;
};

}  // namespace

std::pair<at::Tensor, at::Tensor> decomposed(const at::Tensor& weight, int64_t rank, double scale,
                                             const AdapterStart& start, uint64_t seed, std::string_view name) {
  at::Tensor a, b;
  if (start.kind == AdapterStart::Kind::kOlora) {
    const auto [q, r] = at::linalg_qr(weight);
    a = r.narrow(0, 0, rank);
    b = q.narrow(1, 0, rank);
  } else {
    const auto [u, s, vh] = largest_values(weight, rank, start, make_philox_key(seed, fmt::format("{}.lora_A", name)));
    const at::Tensor roots = (s / scale).sqrt();
    a = roots.unsqueeze(1) * vh;
    b = u * roots;
  }
  const at::Tensor signs = a.gather(1, a.abs().argmax(1, /*keepdim=*/true)).sign();
  return {a * signs, b * signs.t()};
}

void begin_decomposed(const DataParallel& data, const BuiltModel& built, const LoraOptions& options, uint64_t seed,
                      const Groups& groups) {
  const at::NoGradGuard no_grad;
  Group& world = *groups.world;
  const std::vector<DecomposedMatrix> matrices = matrices_of_all(built, world);
  const Decomposition decomposition(data, groups);
  const size_t size = static_cast<size_t>(world.size()), rank = static_cast<size_t>(world.rank());
  for (size_t first = 0; first < matrices.size(); first += size) {
    const size_t count = std::min(size, matrices.size() - first);
    at::Tensor own;
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor whole = decomposition.gather(matrices[first + i]);
      if (i == rank) own = whole;
    }
    std::pair<at::Tensor, at::Tensor> computed;
    run_on_all(world, "decompose weights", [&] {
      if (!own.defined()) return;
      const DecomposedMatrix& matrix = matrices[first + rank];
      computed = decomposed(own, matrix.rank, matrix.scale, options.start(), seed, matrix.name);
    });
    for (size_t i = 0; i < count; ++i) {
      decomposition.spread(matrices[first + i], i == rank ? computed : std::pair<at::Tensor, at::Tensor>{});
    }
  }
}

}  // namespace megalith
