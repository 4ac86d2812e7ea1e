// Reads and writes every state once. A launch's argument is a table of shards of equal dtypes: nothing is copied to the
// device, where the gradient factor, step and decision are read.
#include <cmath>

#include "ops/adamw/kernel.h"
#include "ops/gpu/element.h"
#include "ops/gpu/philox.h"
#include "ops/gpu/vector.h"

namespace megalith::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPieceElements = 1 << 14;

// To name kernels.
struct WholeMaster {};
struct RemainderMaster {};
struct NoMaster {};

struct ShardEntry {
  void *model, *master;
  const void* grad;
  void *exp_avg, *exp_avg_sq;
  int64_t count, first_block;
  double lr, weight_decay;
};
struct DrawnShardEntry : ShardEntry {
  DrawnRun drawn;
};

// Launch arguments are limited to 4 KiB.
template <bool kIsStochastic>
struct ShardTable {
  static constexpr int kMostShards = kIsStochastic ? 34 : 50;
  int num_shards;
  int64_t num_blocks;
  double beta1, beta2, eps;
  const bool* is_made;
  const double* scalars;
  bool has_narrow_grad;
  std::conditional_t<kIsStochastic, DrawnShardEntry, ShardEntry> shards[kMostShards];
};
static_assert(sizeof(ShardTable<false>) <= 4000 && sizeof(ShardTable<true>) <= 4000);

// The gradients' factor, 1 - beta1^t, sqrt(1 - beta2^t), t.
__global__ void make_scalars(AdamwStep a) {
  const double step = a.step != nullptr ? *a.step : a.host_step;
  a.scratch[0] =
      a.scale_is_double ? *static_cast<const double*>(a.grad_scale) : *static_cast<const float*>(a.grad_scale);
  a.scratch[1] = 1 - pow(a.beta1, step);
  a.scratch[2] = sqrt(1 - pow(a.beta2, step));
  a.scratch[3] = step;
}

__device__ inline float add_product(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double add_product(double a, double b, double c) { return fma(a, b, c); }

// double, rounded once, like torch's
template <typename W>
struct Factors {
  W grad_scale, decay, new1, old2, new2, root2, eps, step_size;
};

template <typename Model, typename Moment, typename Master>
struct Pointers {
  using Kept = std::conditional_t<std::is_same_v<Master, WholeMaster>, Wide<Moment>, int16_t>;
  Model* model;
  Kept* master;
  const void* grad;  // of this piece; BFloat16 if has_narrow_grad
  bool has_narrow_grad;
  Moment *exp_avg, *exp_avg_sq;
};

// 16 random bits each for the weight, exp_avg and exp_avg_sq.
struct ElementDraws {
  uint32_t first, second;

  __device__ uint32_t model() const { return first & 0xFFFF; }
  __device__ uint32_t exp_avg() const { return first >> 16; }
  __device__ uint32_t exp_avg_sq() const { return second & 0xFFFF; }
};

__device__ inline int64_t drawn_element(const DrawnRun& run, int64_t i) {
  if (i < run.columns) return run.first + i * run.column_stride;  // avoids a division
  const int64_t row = i / run.columns;
  return run.first + row * run.row_stride + (i - row * run.columns) * run.column_stride;
}

template <int kCount>
__device__ void draw(const DrawnRun& run, uint64_t number, int64_t i, ElementDraws (&draws)[kCount]) {
  PhiloxWords drawn;
  int64_t block = -1;
  MEGALITH_UNROLL
  for (int c = 0; c < kCount; ++c) {
    const int64_t element = drawn_element(run, i + c);
    if (element / 2 != block) {
      block = element / 2;
      drawn = philox_words(run.key, static_cast<uint64_t>(block), number);
    }
    draws[c] =
        element % 2 == 0 ? ElementDraws{drawn.words[0], drawn.words[1]} : ElementDraws{drawn.words[2], drawn.words[3]};
  }
}

// Stochastic: up if 16 random bits plus the 16 lost ones overflow.
template <typename T, bool kIsStochastic>
__device__ T narrowed(Wide<T> value, uint32_t random) {
  if constexpr (kIsStochastic && std::is_same_v<T, BFloat16>) {
    if (value != value) return {0x7FC0};
    return {static_cast<uint16_t>((__float_as_uint(value) + random) >> 16)};
  } else {
    return Rounding<T>::of(value);
  }
}

// See narrow_master.h.
__device__ inline float joined(BFloat16 weight, int16_t remainder, bool is_upper_tie) {
  return __uint_as_float((uint32_t{weight.bits} << 16) + static_cast<uint32_t>(int32_t{remainder}) +
                         (is_upper_tie ? 0x10000u : 0u));
}
__device__ inline int16_t remainder_of(float master, BFloat16 weight, bool& is_upper_tie) {
  const uint32_t rest = master != master ? 0 : __float_as_uint(master) - (uint32_t{weight.bits} << 16);
  is_upper_tie = rest == 0x8000;
  return static_cast<int16_t>(static_cast<uint16_t>(rest));
}

template <int kCount, bool kIsStochastic, typename Model, typename Moment, typename Master>
__device__ void update(const Pointers<Model, Moment, Master>& p, const Factors<Wide<Moment>>& f, int64_t i,
                       const ElementDraws (&draws)[kCount]) {
  using W = Wide<Moment>;
  constexpr bool kIsWhole = std::is_same_v<Master, WholeMaster>, kIsRemainder = std::is_same_v<Master, RemainderMaster>;
  Vector<typename Pointers<Model, Moment, Master>::Kept, kCount> masters;
  Vector<Model, kCount> models;
  if constexpr (kIsWhole || kIsRemainder) masters = load_vector<kCount>(p.master + i);
  if constexpr (!kIsWhole) models = load_vector<kCount>(p.model + i);
  Vector<W, kCount> grads;
  if constexpr (std::is_same_v<W, float>) {
    if (p.has_narrow_grad) {
      const auto narrow = load_vector<kCount>(static_cast<const BFloat16*>(p.grad) + i);
      MEGALITH_UNROLL
      for (int c = 0; c < kCount; ++c) grads[c] = widen(narrow[c]);
    }
  }
  if (!p.has_narrow_grad) grads = load_vector<kCount>(static_cast<const W*>(p.grad) + i);
  auto averages = load_vector<kCount>(p.exp_avg + i), squares = load_vector<kCount>(p.exp_avg_sq + i);
  MEGALITH_UNROLL
  for (int c = 0; c < kCount; ++c) {
    W square = widen(squares[c]), master;
    if constexpr (kIsWhole) {
      master = masters[c];
    } else if constexpr (kIsRemainder) {
      master = joined(models[c], masters[c], __float_as_uint(square) >> 31 != 0);
      square = fabsf(square);
    } else {
      master = widen(models[c]);
    }
    const W g = grads[c] * f.grad_scale;
    const W before = widen(averages[c]);
    const W m = add_product(g - before, f.new1, before);
    W v = add_product(square, f.old2, g * g * f.new2);
    const W w = add_product(f.step_size, m / (sqrt(v) / f.root2 + f.eps), master * f.decay);
    if constexpr (kIsWhole) {
      masters[c] = w;
      models[c] = Rounding<Model>::of(w);
    } else if constexpr (kIsRemainder) {
      models[c] = Rounding<Model>::of(w);
      bool is_upper_tie;
      masters[c] = remainder_of(w, models[c], is_upper_tie);
      if (is_upper_tie) v = -v;
    } else {
      models[c] = narrowed<Model, kIsStochastic>(w, draws[c].model());
    }
    averages[c] = narrowed<Moment, kIsStochastic>(m, draws[c].exp_avg());
    squares[c] = narrowed<Moment, kIsStochastic>(v, draws[c].exp_avg_sq());
  }
  store_vector(p.exp_avg + i, averages);
  store_vector(p.exp_avg_sq + i, squares);
  if constexpr (kIsWhole || kIsRemainder) store_vector(p.master + i, masters);
  if (!kIsWhole || p.model != nullptr) store_vector(p.model + i, models);
}

template <typename T>
__device__ bool begins_vector(const T* p, int count) {
  return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * count) == 0;
}

template <typename Model, typename Moment, typename Master, bool kIsStochastic>
__global__ void update_shards(ShardTable<kIsStochastic> table) {
  using W = Wide<Moment>;
  using P = Pointers<Model, Moment, Master>;
  constexpr int kCount = kVectorBytes / sizeof(W);
  if (table.is_made != nullptr && !*table.is_made) return;
  const int64_t block = blockIdx.x;
  int number = 0, end = table.num_shards;  // the last shard that begins by this block
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
  const int64_t grad_bytes = table.has_narrow_grad ? 2 : sizeof(W);
  const P p{shard.model == nullptr ? nullptr : static_cast<Model*>(shard.model) + first,
            shard.master == nullptr ? nullptr : static_cast<typename P::Kept*>(shard.master) + first,
            static_cast<const char*>(shard.grad) + first * grad_bytes, table.has_narrow_grad,
            static_cast<Moment*>(shard.exp_avg) + first, static_cast<Moment*>(shard.exp_avg_sq) + first};
  const Factors<W> f{.grad_scale = static_cast<W>(table.scalars[0]),
                     .decay = static_cast<W>(1 - shard.lr * shard.weight_decay),
                     .new1 = static_cast<W>(1 - table.beta1),
                     .old2 = static_cast<W>(table.beta2),
                     .new2 = static_cast<W>(1 - table.beta2),
                     .root2 = static_cast<W>(table.scalars[2]),
                     .eps = static_cast<W>(table.eps),
                     .step_size = static_cast<W>(-shard.lr / table.scalars[1])};
  const bool is_aligned = begins_vector(p.model, kCount) && begins_vector(p.master, kCount) &&
                          reinterpret_cast<uintptr_t>(p.grad) % (grad_bytes * kCount) == 0 &&
                          begins_vector(p.exp_avg, kCount) && begins_vector(p.exp_avg_sq, kCount);
  const int64_t vectors = is_aligned ? count / kCount : 0;
  const auto update_at = [&]<int kElements>(int64_t i, std::integral_constant<int, kElements>) {
    ElementDraws draws[kElements] = {};
    if constexpr (kIsStochastic) draw(shard.drawn, static_cast<uint64_t>(table.scalars[3]), first + i, draws);
    update<kElements, kIsStochastic>(p, f, i, draws);
  };
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    update_at(i * kCount, std::integral_constant<int, kCount>{});
  }
  for (int64_t i = vectors * kCount + threadIdx.x; i < count; i += kThreads) {
    update_at(i, std::integral_constant<int, 1>{});
  }
}

template <typename Body>
void with_types(const AdamwPiece& shard, Body&& body) {
  const auto with_rounding = [&](auto model, auto moment, auto master) {
    if constexpr (std::is_same_v<decltype(moment), BFloat16> || std::is_same_v<decltype(master), NoMaster>) {
      if (shard.is_stochastic) return body(model, moment, master, std::true_type{});
    }
    body(model, moment, master, std::false_type{});
  };
  const auto with_moments = [&](auto model, auto master) {
    if (shard.moment_dtype == Dtype::kBFloat16) {
      with_rounding(model, BFloat16{}, master);
    } else {
      with_rounding(model, float{}, master);
    }
  };
  if (shard.is_double) {
    body(double{}, double{}, WholeMaster{}, std::false_type{});
  } else if (shard.master_form == MasterForm::kRemainder) {
    with_moments(BFloat16{}, RemainderMaster{});
  } else if (shard.master_form == MasterForm::kNone) {
    with_moments(BFloat16{}, NoMaster{});
  } else if (shard.model_dtype == Dtype::kBFloat16) {
    with_moments(BFloat16{}, WholeMaster{});
  } else if (shard.model_dtype == Dtype::kFloat16) {
    with_moments(Float16{}, WholeMaster{});
  } else {
    with_moments(float{}, WholeMaster{});
  }
}

bool have_same_types(const AdamwPiece& a, const AdamwPiece& b) {
  return a.model_dtype == b.model_dtype && a.moment_dtype == b.moment_dtype && a.is_double == b.is_double &&
         a.has_narrow_grad == b.has_narrow_grad && a.master_form == b.master_form && a.is_stochastic == b.is_stochastic;
}

// Shards from `first` on with its types, a table per launch.
template <typename Model, typename Moment, typename Master, bool kIsStochastic>
void launch_tables(const AdamwStep& a, int64_t first, Stream queue) {
  using Table = ShardTable<kIsStochastic>;
  const Table empty{.beta1 = a.beta1,
                    .beta2 = a.beta2,
                    .eps = a.eps,
                    .is_made = a.is_made,
                    .scalars = a.scratch,
                    .has_narrow_grad = a.shards[first].has_narrow_grad};
  Table table = empty;
  const auto launch_table = [&] {
    if (table.num_blocks == 0) return;  // launches need blocks
    launch("adamw", update_shards<Model, Moment, Master, kIsStochastic>, static_cast<unsigned>(table.num_blocks),
           kThreads, 0, queue, table);
    table = empty;
  };
  for (int64_t j = first; j < a.num_shards; ++j) {
    const AdamwPiece& s = a.shards[j];
    if (!have_same_types(s, a.shards[first]) || s.count == 0) continue;
    auto& entry = table.shards[table.num_shards++];
    static_cast<ShardEntry&>(entry) = {s.model, s.master,         s.grad, s.exp_avg,     s.exp_avg_sq,
                                       s.count, table.num_blocks, s.lr,   s.weight_decay};
    if constexpr (kIsStochastic) entry.drawn = s.drawn;
    table.num_blocks += (s.count + kPieceElements - 1) / kPieceElements;
    if (table.num_shards == Table::kMostShards) launch_table();
  }
  launch_table();
}

}  // namespace

void adamw(const AdamwStep& a, void* stream) {
  const auto queue = static_cast<Stream>(stream);
  launch("adamw, scalars", make_scalars, 1, 1, 0, queue, a);
  for (int64_t i = 0; i < a.num_shards; ++i) {
    bool is_first = true;
    for (int64_t j = 0; j < i; ++j) is_first = is_first && !have_same_types(a.shards[j], a.shards[i]);
    if (!is_first) continue;
    with_types(a.shards[i], [&](auto model, auto moment, auto master, auto is_stochastic) {
      launch_tables<decltype(model), decltype(moment), decltype(master), is_stochastic.value>(a, i, queue);
    });
  }
}

}  // namespace megalith::ops::gpu
