// Bits flipped on purpose, in every place where a step keeps or moves numbers: each is found, and the rank is named.
#include "kinds/kinds.h"
#include "train/step_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/group_view.h"
#include "comm/thread_world.h"
#include "device/bits_digest.h"
#include "device/threads.h"
#include "support/injection_seed.h"
#include "support/source_dir.h"
#include "train/setup.h"
#include "train/step.h"
#include "train/tiny_rows.h"

namespace megalith::flipped_bits {
namespace {

using Words = std::vector<std::string>;

enum class Place { kWeight, kMoment, kGradient, kLocalGradient, kActivation, kCollective };

struct Injection {
  Place place = Place::kWeight;
  int rank = 0;
  int64_t step = 1;              // of a state: after it; else in it
  std::array<bool, 3> passes{};  // in which a computation goes wrong
  uint32_t draw = 0;             // chooses tensor, element and bit
};

// One of the upper bits of an element's fraction, or of its exponent: what a unit computes with it differs. In a zero,
// to which a gradient may be added, the highest of the exponent: a tiny number would vanish in the sum.
void flip(const at::Tensor& tensor, uint32_t draw) {
  auto* bytes = static_cast<uint8_t*>(tensor.data_ptr());
  const auto size = static_cast<uint32_t>(tensor.itemsize());
  const uint32_t element = draw / 8 % static_cast<uint32_t>(tensor.numel());
  uint8_t* const first = bytes + element * size;
  const bool is_zero = std::all_of(first, first + size, [](uint8_t byte) { return byte == 0; });
  (is_zero ? first[size - 1] : first[size - 2]) ^= is_zero ? uint8_t{0x40} : static_cast<uint8_t>(1U << draw % 8);
}

// A fault on one rank, and when it is due.
struct Fault {
  Injection injection;
  bool is_here = false;
  int64_t step = 0;
  int pass = -1;
  bool is_in_pass = false;  // the check's own exchanges are not spoiled
  int num_blocks = 0, num_microbatches = 0, num_collectives = 0;
  std::array<int, 2> counted{};  // blocks and collectives of a pass

  bool is_due(Place place) const {
    return is_here && is_in_pass && injection.place == place && step == injection.step && pass >= 0 &&
           injection.passes.at(static_cast<size_t>(pass));
  }
  uint32_t draw() const { return injection.draw + 977U * static_cast<uint32_t>(pass); }  // each pass another bit
  void begin_pass() {
    if (pass >= 0) counted = {num_blocks, num_collectives};
    ++pass;
    num_blocks = num_microbatches = num_collectives = 0;
  }
};

class FaultyRunner : public BlockRunner {
 public:
  FaultyRunner(BlockRunner* inner, Fault& fault) : inner_(inner), fault_(fault) {}

  std::vector<at::Tensor> run(const Block& block, const std::vector<at::Tensor>& inputs,
                              const BlockBody& body) override {
    std::vector<at::Tensor> outputs = run_block(inner_, block, inputs, body);
    if (!block.is_layer) return outputs;
    const int number = fault_.num_blocks++;
    if (!fault_.is_due(Place::kActivation) || number != static_cast<int>(fault_.injection.draw % 2)) return outputs;
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || output.numel() < 16) continue;
      flip(output, fault_.draw());
      break;
    }
    return outputs;
  }

 private:
  BlockRunner* inner_;
  Fault& fault_;
};

class FaultyData : public DataParallel {
 public:
  FaultyData(DataParallel& inner, Fault& fault) : inner_(inner), fault_(fault) {}

  void begin_step() override { inner_.begin_step(); }
  void begin_microbatch(bool is_last) override {
    // The first microbatch's gradients, before they are summed over ranks.
    if (fault_.num_microbatches++ == 1 && fault_.is_due(Place::kLocalGradient)) flip_gradient();
    inner_.begin_microbatch(is_last);
  }
  void finish_step() override {
    inner_.finish_step();
    if (fault_.is_due(Place::kGradient)) flip_gradient();
  }
  void publish() override { inner_.publish(); }
  void wait_for_parameters() override { inner_.wait_for_parameters(); }
  void initialise(uint64_t seed, bool only_adapters) override { inner_.initialise(seed, only_adapters); }
  const std::vector<OwnedPart>& parts() const override { return inner_.parts(); }
  std::vector<ParameterRuns> runs() const override { return inner_.runs(); }
  const std::vector<OwnedPart>& model_parts() const override { return inner_.model_parts(); }
  BlockRunner* runner() override { return inner_.runner(); }
  int64_t parameter_bytes() const override { return inner_.parameter_bytes(); }
  int64_t gradient_bytes() const override { return inner_.gradient_bytes(); }

 private:
  void flip_gradient() const { flip(inner_.parts()[fault_.draw() % inner_.parts().size()].grad, fault_.draw()); }

  DataParallel& inner_;
  Fault& fault_;
};

// Below the watch: what comes back differs from what the others gave.
class FaultyGroup : public GroupView {
 public:
  FaultyGroup(const std::shared_ptr<Group>& inner, Fault& fault) : GroupView(inner, inner->axis()), fault_(fault) {}

 protected:
  State start_all_reduce(const at::Tensor& tensor, ReduceOp op, const Record& record) override {
    return spoiled(GroupView::start_all_reduce(tensor, op, record), tensor);
  }
  State start_all_gather(const at::Tensor& out, const at::Tensor& in, const Record& record) override {
    return spoiled(GroupView::start_all_gather(out, in, record), out);
  }
  State start_reduce_scatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op, const Record& record) override {
    return spoiled(GroupView::start_reduce_scatter(out, in, op, record), out);
  }
  State start_send_receive(const std::vector<Transfer>& transfers, const Record& record) override {
    at::Tensor received;
    for (const Transfer& transfer : transfers) {
      if (!transfer.is_send) received = transfer.tensor;
    }
    return spoiled(GroupView::start_send_receive(transfers, record), received);
  }

 private:
  struct Spoiled : WorkState {
    Spoiled(State inner, at::Tensor tensor, uint32_t draw)
        : inner(std::move(inner)), tensor(std::move(tensor)), draw(draw) {}
    void wait() override {
      inner->wait();
      if (tensor.defined()) flip(tensor, draw);
      tensor = at::Tensor();
    }
    bool is_done() override { return inner->is_done(); }
    State inner;
    at::Tensor tensor;
    uint32_t draw;
  };

  State spoiled(State inner, const at::Tensor& tensor) {
    if (!tensor.defined()) return inner;
    if (!fault_.is_in_pass) return inner;
    const int number = fault_.num_collectives++;
    const int all = std::max(fault_.counted[1], 1);
    const bool is_it = number == static_cast<int>(fault_.injection.draw % static_cast<uint32_t>(all));
    if (!is_it || !fault_.is_due(Place::kCollective)) return inner;
    return std::make_shared<Spoiled>(std::move(inner), tensor, fault_.draw());
  }

  Fault& fault_;
};

struct Layout {
  std::string name;
  Mesh mesh;
  int num_ranks;
  Words words;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"one rank", Mesh::single(), 1, {}},
      {"data parallel", Mesh({.dp = 2}), 2, {}},
      {"distributed optimizer", Mesh({.dp = 2}), 2, {"--use_distributed_optimizer"}},
      {"tensor and sequence parallel", Mesh({.tp = 2}), 2, {"--tensor_model_parallel_size=2", "--sequence_parallel"}},
      {"pipeline", Mesh({.pp = 2}), 2, {"--pipeline_model_parallel_size=2"}},
      {"tensor and data parallel", Mesh({.tp = 2, .dp = 2}), 4, {"--tensor_model_parallel_size=2"}},
  };
  return all;
}

std::unique_ptr<Resolved> resolve_layout(const Layout& layout) {
  ConfigInputs inputs;
  inputs.arguments = {"--num_layers=2",
                      "--hidden_size=16",
                      "--ffn_hidden_size=32",
                      "--num_attention_heads=2",
                      "--vocab_size=32",
                      "--make_vocab_size_divisible_by=16",
                      "--max_position_embeddings=8",
                      "--swiglu",
                      "--normalization=RMSNorm",
                      "--disable_bias_linear",
                      "--position_embedding_type=rope",
                      "--mock_data",
                      "--micro_batch_size=2"};
  inputs.arguments.insert(inputs.arguments.end(), layout.words.begin(), layout.words.end());
  inputs.config_root = test::source_dir() / "configs";
  return resolve_config(all_kinds(), inputs, layout.num_ranks);
}

constexpr int64_t kInterval = 2, kSteps = 4;

struct Found {
  StepFault::Where where;
  int rank;
  bool is_persistent;
  int64_t step;
  std::string message;
};

// Trains a few steps; what was found on this rank.
std::optional<Found> train(const Resolved& resolved, const Groups& groups, std::shared_ptr<CollectiveWatch> watch,
                           Fault& fault) {
  const SingleThreadedScope one_thread;
  BuiltModel built = build_model(resolved, groups, at::kCPU);
  const std::unique_ptr<DataParallel> inner = make_data_parallel(resolved, built, groups, at::kCPU);
  FaultyData data(*inner, fault);
  data.initialise(7, false);
  const BlockRunners runners = set_block_runners(built, data, at::kCPU);
  std::vector<std::unique_ptr<FaultyRunner>> faulty;
  for (size_t i = 0; i < built.chunks.size(); ++i) {
    faulty.push_back(std::make_unique<FaultyRunner>(runners.of_chunks[i].get(), fault));
    built.chunks[i]->set_runner(faulty.back().get());
  }
  Optimizer optimizer(data, groups, resolved.config.optimizer, Kernels::kFused);
  PipelinedModel model(built.view(), groups, at::kCPU);
  const std::unique_ptr<Task> task = make_task(resolved);
  TrainStep step(model, *task, data, optimizer, groups, at::kCPU);
  StepCheck check(data, groups, std::move(watch), [&] {
    std::vector<CheckpointTensor> kept = model_tensors(data);
    for (const OptimizerTensor& entry : optimizer.state()) {
      kept.push_back({.key = entry.key, .placement = &entry.part->parameter->placement(), .local = entry.tensor});
    }
    return kept;
  });
  test::NaiveInput whole;
  const auto rows = 2 * 2 * groups.dp->size();
  whole.tokens = at::arange(rows * 8, at::kLong).mul(7).remainder(31).view({rows, 8});
  whole.labels = whole.tokens.mul(5).add(3).remainder(31);
  whole.loss_weights = at::ones({rows, 8}, at::kFloat);
  whole.position_ids = at::arange(8, at::kLong).repeat({rows, 1});
  std::vector<Batch> batches;
  for (int64_t m = 0; m < 2; ++m) {
    const int64_t first = 2 * (m * groups.dp->size() + groups.dp->rank());
    batches.push_back(test::tiny_rows(whole, first, 2, first));
  }
  check.remember();
  for (int64_t number = 1; number <= kSteps; ++number) {
    fault.step = number;
    fault.pass = -1;
    StepGuards guards;
    guards.run_passes = [&](const StepCheck::Pass& pass) {
      check.run(number, number % kInterval == 0, [&] {
        fault.begin_pass();
        fault.is_in_pass = true;
        const at::Tensor sums = pass();
        fault.is_in_pass = false;
        return sums;
      });
    };
    try {
      const StepResult result = step.run(batches, 1e-2, 0, 1.0, {}, guards).read();
      EXPECT_TRUE(std::isfinite(result.losses.at(0).value));
    } catch (const StepFault& found) {
      return Found{found.where(), found.rank(), found.is_persistent(), number, found.what()};
    }
    data.wait_for_parameters();
    check.remember();
    const Injection& injection = fault.injection;
    if (!fault.is_here || injection.step != number) continue;
    const uint32_t draw = injection.draw;
    if (injection.place == Place::kWeight) {
      flip(data.model_parts()[draw % data.model_parts().size()].model, draw);
    } else if (injection.place == Place::kMoment) {
      flip(optimizer.state()[draw % optimizer.state().size()].tensor, draw);
    }
  }
  return std::nullopt;
}

std::vector<std::optional<Found>> train_with(const Layout& layout, const std::optional<Injection>& injection) {
  const std::unique_ptr<Resolved> resolved = resolve_layout(layout);
  std::vector<std::optional<Found>> found(static_cast<size_t>(layout.num_ranks));
  const auto run_rank = [&](int rank, const GroupFactory* factory) {
    Fault fault;
    if (injection) {
      fault.injection = *injection;
      fault.is_here = injection->rank == rank;
    }
    const auto watch = std::make_shared<CollectiveWatch>();
    if (factory == nullptr) {
      found[0] = train(*resolved, Groups::single(), watch, fault);
      return;
    }
    const GroupFactory faulty = [&](std::vector<int> ranks, const std::string& axis) {
      return std::make_shared<FaultyGroup>((*factory)(std::move(ranks), axis), fault);
    };
    const Groups groups(layout.mesh, rank, watched_factory(faulty, watch));
    found[static_cast<size_t>(rank)] = train(*resolved, groups, watch, fault);
  };
  if (layout.num_ranks == 1) {
    run_rank(0, nullptr);
  } else {
    ThreadWorld(layout.num_ranks).run([&](int rank, const GroupFactory& factory) { run_rank(rank, &factory); });
  }
  return found;
}

TEST(StepCheck, FindsNothingWhereNothingIsWrong) {
  for (const Layout& layout : layouts()) {
    for (const auto& found : train_with(layout, std::nullopt)) {
      EXPECT_FALSE(found) << layout.name << ": " << found->message;
    }
  }
}

// A hundred of them, every place on every layout that has it.
TEST(StepCheck, FindsAHundredOfAHundredFlippedBitsAndNamesTheRank) {
  std::mt19937 random(test::injection_seed(20));
  const auto draw = [&](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  constexpr std::array kPlaces = {Place::kWeight,        Place::kMoment,     Place::kGradient,
                                  Place::kLocalGradient, Place::kActivation, Place::kCollective};
  std::map<Place, int> num_found;
  for (int i = 0; i < 100; ++i) {
    Injection injection{.place = kPlaces.at(static_cast<size_t>(i) % kPlaces.size()), .draw = draw(1U << 20)};
    const bool is_collective = injection.place == Place::kCollective;
    const size_t first = is_collective ? 1 : 0;
    const Layout& layout = layouts()[first + static_cast<size_t>(i / 6) % (layouts().size() - first)];
    // A pipeline's second forward may come before the first backward: there is nothing yet to flip.
    const bool is_empty = injection.place == Place::kLocalGradient && layout.name == "pipeline";
    if (is_empty) injection.place = Place::kGradient;
    injection.rank = static_cast<int>(draw(static_cast<uint32_t>(layout.num_ranks)));
    const bool is_state = injection.place == Place::kWeight || injection.place == Place::kMoment;
    // A state may change after any step; a computation goes wrong only in steps that are repeated.
    injection.step = is_state ? 1 + draw(kSteps - 1) : kInterval * (1 + draw(kSteps / kInterval));
    const uint32_t which = draw(3);
    injection.passes = {which != 1, which != 0, which == 2};  // the first, the second, or all of them
    const std::string what = fmt::format("injection {} of kind {} on {}, rank {}, step {}, passes {}", i,
                                         static_cast<int>(injection.place), layout.name, injection.rank,
                                         injection.step, which);
    const auto where = is_state        ? StepFault::Where::kState
                       : is_collective ? StepFault::Where::kCollective
                                       : StepFault::Where::kComputation;
    bool is_right = true;
    for (const auto& found : train_with(layout, injection)) {
      ASSERT_TRUE(found) << what;
      const int64_t expected_step = is_state ? injection.step + 1 : injection.step;
      is_right = is_right && found->rank == injection.rank && found->where == where && found->step == expected_step &&
                 found->is_persistent == (!is_state && which == 2);
      EXPECT_TRUE(is_right) << what << ": " << found->message;
    }
    num_found[injection.place] += is_right;
  }
  int all = 0;
  for (const auto& [place, count] : num_found) all += count;
  EXPECT_EQ(all, 100);
  std::printf("%d flips\n", all);
}

TEST(StepCheck, WhoGaveOtherBitsAfterEqualOnesIsAtFault) {
  using Kind = FirstDifference::Kind;
  const auto nobody = [](int, const std::string&) { return false; };
  const std::vector<FirstDifference> from_one = {{Kind::kGot, "dp/0+1 3", "x"}, {Kind::kGave, "dp/0+1 3", "x"}, {}};
  const Verdict giver = find_fault(from_one, nobody);
  EXPECT_EQ(giver.ranks, std::vector<int>{1});
  EXPECT_EQ(giver.where, StepFault::Where::kComputation);
  // Rank 2 got what rank 0 passed on; rank 0 got other bits although all had given the same.
  const std::vector<FirstDifference> passed_on = {
      {Kind::kGot, "tp/0+1 3", "x"}, {}, {Kind::kGot, "pp/0+2 0>1 0", "y"}};
  const Verdict collective = find_fault(
      passed_on, [](int rank, const std::string& place) { return rank == 0 && place == "pp/0+2 0>1 0"; });
  EXPECT_EQ(collective.ranks, std::vector<int>{0});
  EXPECT_EQ(collective.where, StepFault::Where::kCollective);
  EXPECT_TRUE(find_fault(std::vector<FirstDifference>(4), nobody).ranks.empty());
}

TEST(BitsDigest, EveryBitAndItsPlaceCount) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong, at::kByte}) {
    const at::Tensor tensor = at::arange(37, at::kFloat).to(dtype);
    for (const auto& digest_of : {bits_digest, summed_digest}) {
      const auto digest = digest_of(tensor).item<int64_t>();
      EXPECT_EQ(digest, digest_of(tensor.clone()).item<int64_t>());
      EXPECT_NE(digest, digest_of(tensor.flip(0)).item<int64_t>()) << "the same elements in another order";
      EXPECT_NE(digest, digest_of(tensor.narrow(0, 0, 36)).item<int64_t>());
      for (size_t bit = 0; bit < tensor.nbytes() * 8; ++bit) {
        const at::Tensor other = tensor.clone();
        static_cast<uint8_t*>(other.data_ptr())[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
        ASSERT_NE(digest, digest_of(other).item<int64_t>()) << "bit " << bit << " of " << c10::toString(dtype);
      }
    }
  }
  // A view that does not begin at a word.
  const at::Tensor odd = at::arange(9, at::kByte).narrow(0, 1, 8);
  EXPECT_NE(summed_digest(odd).item<int64_t>(), summed_digest(odd.add(1)).item<int64_t>());
  EXPECT_EQ(bits_digest(at::Tensor()).item<int64_t>(), bits_digest(at::Tensor()).item<int64_t>());
}

}  // namespace
}  // namespace megalith::flipped_bits
