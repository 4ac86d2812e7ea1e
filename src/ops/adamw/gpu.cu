// AdamW over many shards on a GPU: every state is read and written once. Each launch takes a table of shards of one
// combination of dtypes as its argument, so nothing is copied to the device; what only the device knows (the factor of
// the gradients, the number of the step, whether it is made) is read there.
#include <cmath>

#include "ops/adamw/kernel.h"
#include "ops/gpu/element.h"
#include "ops/gpu/vector.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPieceElements = 1 << 14;  // of a block of threads

// All that a launch may have as arguments is 4 KiB.
constexpr int kMostShards = 50;
struct ShardTable {
  int num_shards;
  int64_t num_blocks;
  double beta1, beta2, eps;
  const bool* is_made;
  const double* scalars;
  struct {
    void *model, *master;
    const void* grad;
    void *exp_avg, *exp_avg_sq;
    int64_t count, first_block;
    double lr, weight_decay;
  } shards[kMostShards];
};
static_assert(sizeof(ShardTable) <= 4000);

// scalars: the factor of the gradients, 1 - beta1^t, and the root of 1 - beta2^t.
__global__ void make_scalars(AdamwStep a) {
  const double step = a.step != nullptr ? *a.step : a.host_step;
  a.scratch[0] =
      a.scale_is_double ? *static_cast<const double*>(a.grad_scale) : *static_cast<const float*>(a.grad_scale);
  a.scratch[1] = 1 - pow(a.beta1, step);
  a.scratch[2] = sqrt(1 - pow(a.beta2, step));
}

__device__ inline float add_product(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double add_product(double a, double b, double c) { return fma(a, b, c); }

// Made in double and rounded once, as torch's are.
template <typename W>
struct Factors {
  W grad_scale, decay, new1, old2, new2, root2, eps, step_size;
};

template <typename Model, typename Moment>
struct Pointers {
  Model* model;
  Wide<Moment>* master;
  const Wide<Moment>* grad;
  Moment *exp_avg, *exp_avg_sq;
};

// Elements [i, i + kCount).
template <int kCount, typename Model, typename Moment>
__device__ void update(const Pointers<Model, Moment>& p, const Factors<Wide<Moment>>& f, int64_t i) {
  using W = Wide<Moment>;
  auto masters = load_vector<kCount>(p.master + i);
  const auto grads = load_vector<kCount>(p.grad + i);
  auto averages = load_vector<kCount>(p.exp_avg + i), squares = load_vector<kCount>(p.exp_avg_sq + i);
  Vector<Model, kCount> models;
  MEGALITH_UNROLL
  for (int c = 0; c < kCount; ++c) {
    const W g = grads[c] * f.grad_scale;
    const W before = widen(averages[c]);
    const W m = add_product(g - before, f.new1, before);
    const W v = add_product(widen(squares[c]), f.old2, g * g * f.new2);
    const W w = add_product(f.step_size, m / (sqrt(v) / f.root2 + f.eps), masters[c] * f.decay);
    averages[c] = Rounding<Moment>::of(m);
    squares[c] = Rounding<Moment>::of(v);
    masters[c] = w;
    models[c] = Rounding<Model>::of(w);
  }
  store_vector(p.exp_avg + i, averages);
  store_vector(p.exp_avg_sq + i, squares);
  store_vector(p.master + i, masters);
  if (p.model != nullptr) store_vector(p.model + i, models);
}

template <typename T>
__device__ bool begins_vector(const T* p, int count) {
  return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * count) == 0;
}

template <typename Model, typename Moment>
__global__ void update_shards(ShardTable table) {
  using W = Wide<Moment>;
  constexpr int kCount = kVectorBytes / sizeof(W);
  if (table.is_made != nullptr && !*table.is_made) return;
  const int64_t block = blockIdx.x;
  int number = 0, end = table.num_shards;  // the last shard that begins at this block or before
  while (number + 1 < end) {
    const int middle = (number + end) / 2;
    if (table.shards[middle].first_block <= block) {
      number = middle;
    } else {
      end = middle;
    }
  }
  const auto& shard = table.shards[number];
  const int64_t first = (block - shard.first_block) * kPieceElements, left = shard.count - first;
  const int64_t count = left < kPieceElements ? left : kPieceElements;
  const Pointers<Model, Moment> p{shard.model == nullptr ? nullptr : static_cast<Model*>(shard.model) + first,
                                  static_cast<W*>(shard.master) + first, static_cast<const W*>(shard.grad) + first,
                                  static_cast<Moment*>(shard.exp_avg) + first,
                                  static_cast<Moment*>(shard.exp_avg_sq) + first};
  const Factors<W> f{.grad_scale = static_cast<W>(table.scalars[0]),
                     .decay = static_cast<W>(1 - shard.lr * shard.weight_decay),
                     .new1 = static_cast<W>(1 - table.beta1),
                     .old2 = static_cast<W>(table.beta2),
                     .new2 = static_cast<W>(1 - table.beta2),
                     .root2 = static_cast<W>(table.scalars[2]),
                     .eps = static_cast<W>(table.eps),
                     .step_size = static_cast<W>(-shard.lr / table.scalars[1])};
  const bool is_aligned = begins_vector(p.model, kCount) && begins_vector(p.master, kCount) &&
                          begins_vector(p.grad, kCount) && begins_vector(p.exp_avg, kCount) &&
                          begins_vector(p.exp_avg_sq, kCount);
  const int64_t vectors = is_aligned ? count / kCount : 0;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) update<kCount>(p, f, i * kCount);
  for (int64_t i = vectors * kCount + threadIdx.x; i < count; i += kThreads) update<1>(p, f, i);
}

// Calls body with the types of the model's copy and of the moments.
template <typename Body>
void with_types(const AdamwPiece& shard, Body&& body) {
  const auto with_moments = [&](auto model) {
    if (shard.moment_dtype == Dtype::kBFloat16) {
      body(model, BFloat16{});
    } else {
      body(model, float{});
    }
  };
  if (shard.is_double) {
    body(double{}, double{});
  } else if (shard.model_dtype == Dtype::kBFloat16) {
    with_moments(BFloat16{});
  } else if (shard.model_dtype == Dtype::kFloat16) {
    with_moments(Float16{});
  } else {
    with_moments(float{});
  }
}

bool have_same_types(const AdamwPiece& a, const AdamwPiece& b) {
  return a.model_dtype == b.model_dtype && a.moment_dtype == b.moment_dtype && a.is_double == b.is_double;
}

}  // namespace

void adamw(const AdamwStep& a, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  launch("adamw, scalars", make_scalars, 1, 1, 0, queue, a);
  const ShardTable empty{.beta1 = a.beta1, .beta2 = a.beta2, .eps = a.eps, .is_made = a.is_made, .scalars = a.scratch};
  // A combination of dtypes begins with the first shard that has it.
  for (int64_t i = 0; i < a.num_shards; ++i) {
    const AdamwPiece& kind = a.shards[i];
    bool is_first = true;
    for (int64_t j = 0; j < i; ++j) is_first = is_first && !have_same_types(a.shards[j], kind);
    if (!is_first) continue;
    ShardTable table = empty;
    const auto launch_table = [&] {
      if (table.num_blocks == 0) return;  // a launch of no blocks is refused
      with_types(kind, [&](auto model, auto moment) {
        launch("adamw", update_shards<decltype(model), decltype(moment)>, static_cast<unsigned>(table.num_blocks),
               kThreads, 0, queue, table);
      });
      table = empty;
    };
    for (int64_t j = i; j < a.num_shards; ++j) {
      const AdamwPiece& s = a.shards[j];
      if (!have_same_types(s, kind) || s.count == 0) continue;
      table.shards[table.num_shards++] = {s.model, s.master,         s.grad, s.exp_avg,     s.exp_avg_sq,
                                          s.count, table.num_blocks, s.lr,   s.weight_decay};
      table.num_blocks += (s.count + kPieceElements - 1) / kPieceElements;
      if (table.num_shards == kMostShards) launch_table();
    }
    launch_table();
  }
}

}  // namespace megalith::ops::gpu
