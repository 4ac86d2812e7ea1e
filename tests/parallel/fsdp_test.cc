// FSDP against one rank that holds everything: losses, gradients and parameters over five AdamW steps, memory, the
// sequence of collectives, and use outside a step.
#include "parallel/fsdp_runs.h"

namespace megalith {
namespace {

using namespace test;
using namespace fsdp_runs;

TEST(Fsdp, EqualsOneRankInFloat64) {
  for (const bool is_tied : {false, true}) {
    Setting s = setting();
    s.config.untie_embeddings_and_output_weights = !is_tied;
    // Ties, dropout and evaluations in one half of the cases: what they have in common is tested in the other.
    if (is_tied) s.config.hidden_dropout = s.config.attention_dropout = 0.2;
    s.evaluates = is_tied;
    const Outcome expected = train(Groups::single(), s, false);
    for (const Layout& layout : data_layouts()) {
      for (const int64_t num_microbatches : {1, 3}) {
        s.num_microbatches = num_microbatches;
        expect_near(train_on(layout.mesh, s), expected, kExact,
                    fmt::format("{}, {} microbatches{}", layout.name, num_microbatches, is_tied ? ", tied" : ""));
      }
    }
  }
}

TEST(Fsdp, OneRankAloneIsReplicatedTrainingToTheBit) {
  const Setting s = setting();
  const Groups groups = Groups::single();
  expect_equal(train(groups, s, true), train(groups, s, false), "one rank");
}

TEST(Fsdp, WithTensorParallelRanksEqualsOneRank) {
  for (const bool is_sequence_parallel : {false, true}) {
    Setting s = setting();
    s.config.hidden_dropout = 0.2;
    s.evaluates = true;
    const Outcome expected = train(Groups::single(), s, false);
    s.is_sequence_parallel = is_sequence_parallel;
    s.num_microbatches = 3;
    for (const Layout& layout : {Layout{"tp 2 dp 2", Mesh({.tp = 2, .dp = 2})},
                                 Layout{"tp 2 dp 2x2", Mesh({.tp = 2, .dp = 4, .dp_replicate = 2})}}) {
      expect_near(train_on(layout.mesh, s), expected, kExact, layout.name + (is_sequence_parallel ? " sp" : ""));
    }
  }
}

TEST(Fsdp, EqualsOneRankInFloat32OnFusedKernels) {
  Setting s = setting();
  s.dtype = at::kFloat;
  s.kernels = Kernels::kFused;
  const Outcome expected = train(Groups::single(), s, false);
  s.num_microbatches = 3;
  for (const Layout& layout : data_layouts()) expect_near(train_on(layout.mesh, s), expected, 1e-5, layout.name);
}

TEST(Fsdp, OverlapReshardingAndRecomputationChangeNoBit) {
  Setting s = setting();
  s.config.hidden_dropout = 0.2;
  s.num_microbatches = 3;
  s.num_steps = 2;
  for (const Layout& layout : {Layout{"dp 3", Mesh({.dp = 3})}, Layout{"dp 2x2", Mesh({.dp = 4, .dp_replicate = 2})}}) {
    s.fsdp = {};
    s.recomputes = false;
    const Outcome expected = train_on(layout.mesh, s);
    for (const bool overlap : {true, false}) {
      for (const bool reshard : {true, false}) {
        for (const bool recomputes : {true, false}) {
          s.fsdp = {.reshard_after_forward = reshard, .overlap = overlap};
          s.recomputes = recomputes;
          expect_equal(train_on(layout.mesh, s), expected,
                       fmt::format("{} overlap {} reshard {} recompute {}", layout.name, overlap, reshard, recomputes));
        }
      }
    }
  }
}

TEST(Fsdp, FrozenParametersAreShardedAndStayAsTheyAre) {
  const std::map<std::string, std::function<bool(const std::string&)>> choices = {
      // Backward ends in layer 1, whose input needs no gradient; layer 0 has nothing to reduce.
      {"below layer 1",
       [](const std::string& name) { return name.find("embed") != name.npos || name.find("layers.0") != name.npos; }},
      // Layer 1 passes gradients on without any of its own; layer 2 has both kinds.
      {"in between",
       [](const std::string& name) {
         return name.find("layers.1.") != name.npos || name.find("layers.2.mlp") != name.npos ||
                name.find("lm_head") != name.npos;
       }},
  };
  for (const auto& [what, is_frozen] : choices) {
    Setting s = setting();
    s.is_frozen = is_frozen;
    s.evaluates = true;
    const Outcome expected = train(Groups::single(), s, false);
    EXPECT_LT(expected.gradients.size(), expected.values.size());
    for (const int64_t num_microbatches : {1, 3}) {
      s.num_microbatches = num_microbatches;
      for (const Layout& layout : data_layouts()) {
        expect_near(train_on(layout.mesh, s), expected, kExact, what + " " + layout.name);
      }
    }
  }
}

TEST(Fsdp, ReductionInBfloat16StaysNear) {
  Setting s = setting();
  s.dtype = at::kFloat;
  s.num_steps = 1;
  s.num_microbatches = 3;
  const Outcome expected = train(Groups::single(), s, false);
  s.fsdp.grad_reduce_in_bf16 = true;
  for (const Layout& layout : data_layouts()) {
    const Outcome actual = train_on(layout.mesh, s);
    for (const auto& [name, gradient] : expected.gradients) {
      // Eight significant bits in each summand, in their sum, and in the sum over the replicas.
      const double difference = relative_difference(actual.gradients.at(name), gradient);
      EXPECT_LE(difference, 0.02) << layout.name << " " << name;
      EXPECT_GT(difference, 1e-5) << layout.name << " " << name << " was not rounded";
    }
  }
}

TEST(Fsdp, CollectivesAreTheSameOnAllRanksAndOneLayerAhead) {
  const std::vector<std::string> step = {
      // Forward.
      "all_gather root", "all_gather model.layers.0", "all_gather model.layers.1", "all_gather model.layers.2",
      // Backward: the last layer is still whole.
      "all_gather model.layers.1", "reduce_scatter model.layers.2", "all_gather model.layers.0",
      "reduce_scatter model.layers.1", "reduce_scatter model.layers.0"};
  const std::vector<std::string> next_microbatch(step.begin() + 1, step.end());  // the root is still whole
  std::vector<std::string> expected = step;
  expected.insert(expected.end(), next_microbatch.begin(), next_microbatch.end());
  expected.push_back("reduce_scatter root");
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    Setting s = setting();
    s.num_microbatches = 2;
    const auto model = make_model(groups, s);
    Fsdp fsdp(model->parameters(), model->blocks(), groups, {});
    model->set_runner(fsdp.runner());
    std::vector<std::string> seen;
    std::map<std::string, size_t> num_seen_at_end;  // how many had started when the first of this name was waited for
    groups.dp_shard_cp->set_trace_hook([&](TracePhase phase, const CollectiveRecord& record) {
      const std::string text = fmt::format("{} {}", name_of(record.kind), record.label);
      if (phase == TracePhase::kStart)
        seen.push_back(text);
      else
        num_seen_at_end.emplace(text, seen.size());
    });
    for (int64_t i = 0; i < 2; ++i) {
      seen.clear();
      fsdp.begin_step();
      run_microbatches(*model, fsdp, groups, s, i);
      fsdp.finish_step();
      fsdp.publish();
      EXPECT_EQ(seen, expected) << groups.rank;
    }
    // Each gather is waited for when the next is under way, each reduction when the one after it is, or in the next
    // microbatch's first layer.
    EXPECT_EQ(num_seen_at_end["all_gather root"], 2u);
    EXPECT_EQ(num_seen_at_end["all_gather model.layers.0"], 3u);
    EXPECT_EQ(num_seen_at_end["all_gather model.layers.1"], 4u);
    EXPECT_EQ(num_seen_at_end["reduce_scatter model.layers.2"], 8u);
    EXPECT_EQ(num_seen_at_end["reduce_scatter model.layers.1"], 11u);
    seen.clear();
    evaluate(*model, s);
    EXPECT_EQ(seen, std::vector<std::string>(step.begin(), step.begin() + 4)) << groups.rank;
    groups.dp_shard_cp->set_trace_hook({});
  });
}

TEST(Fsdp, ARankWithoutBackwardHangsNobodyAndAddsNothing) {
  TensorMap gradients;
  std::mutex mutex;
  const Setting s = setting();
  const auto gradients_on = [&](Groups& groups, const std::vector<bool>& runs_backward) {
    const auto model = make_model(groups, s);
    Fsdp fsdp(model->parameters(), model->blocks(), groups, {});
    model->set_runner(fsdp.runner());
    fsdp.begin_step();
    for (size_t m = 0; m < runs_backward.size(); ++m) {
      fsdp.begin_microbatch(m + 1 == runs_backward.size());
      const NaiveInput batch = part_of_batch(s.config, 0, 0, 2);
      const ModelOutput output = model->forward(model_input(batch), {}, HeadOutput::kLoss);
      if (runs_backward[m]) output.terms.at(0).objective.backward();
    }
    fsdp.finish_step();
    TensorMap mine;
    collect_parts(fsdp.parts(), true, mine);
    return mine;
  };
  Groups single = Groups::single();
  const TensorMap expected = gradients_on(single, {true});
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    // The two ranks take turns.
    const TensorMap mine = gradients_on(groups, {groups.rank == 0, groups.rank == 1});
    const std::lock_guard lock(mutex);
    merge(gradients, mine);
  });
  for (const auto& [name, gradient] : expected) {
    // The head's weight gradient is made in forward.
    const double times = name == "lm_head.weight" ? 4 : 2;
    EXPECT_LE(relative_difference(gradients.at(name), gradient * times), kExact) << name;
  }
}

TEST(Fsdp, BytesAreThePlacementsArithmeticAndPeaksAreTwoLayers) {
  for (const auto& [dtype, reduces_in_bf16] :
       {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}}) {
    Setting s = setting();
    s.dtype = dtype;
    s.fsdp.grad_reduce_in_bf16 = reduces_in_bf16;
    s.config.num_layers = 5;
    s.num_microbatches = 3;
    s.is_frozen = [](const std::string& name) { return name.find("mlp.down_proj") != name.npos; };
    const int ranks = 3;
    ThreadWorld(ranks).run(Mesh({.dp = ranks}), [&](Groups& groups) {
      const auto model = make_model(groups, s);
      // By unit and whether it trains: elements padded to a multiple of the ranks.
      std::map<std::pair<std::string, bool>, int64_t> elements;
      for (const Parameter* param : model->parameters()) {
        const std::string& name = param->name();
        const std::string unit = name.find("layers.") == name.npos ? "root" : name.substr(0, 14);
        elements[{unit, param->is_trainable()}] += param->placement().num_local_elements();
      }
      const auto element = static_cast<int64_t>(c10::elementSize(s.dtype));
      int64_t parameters = 0, gradients = 0, root = 0, layer = 0, root_gradients = 0, layer_gradients = 0;
      for (const auto& [unit, count] : elements) {
        const int64_t run = (count + ranks - 1) / ranks;
        const bool is_root = unit.first == "root";
        parameters += run * element;
        if (is_root || unit.first == "model.layers.0") (is_root ? root : layer) += run * ranks * element;
        if (!unit.second) continue;
        gradients += run * 4;
        (is_root ? root_gradients : layer_gradients) = run * ranks * 4;
      }
      Fsdp fsdp(model->parameters(), model->blocks(), groups, s.fsdp);
      model->set_runner(fsdp.runner());
      EXPECT_EQ(fsdp.parameter_bytes(), parameters);
      EXPECT_EQ(fsdp.gradient_bytes(), gradients);
      EXPECT_EQ(fsdp.whole_parameter_bytes_bound(), root + 2 * layer);
      const int64_t root_copy = s.fsdp.grad_reduce_in_bf16 ? root_gradients / 2 : 0;
      EXPECT_EQ(fsdp.whole_gradient_bytes_bound(), root_gradients + root_copy + 2 * layer_gradients);

      const auto expect_sharded = [&] {
        EXPECT_EQ(fsdp.memory().parameters.now, 0);
        EXPECT_EQ(fsdp.memory().gradients.now, 0);
        for (const Parameter* param : model->parameters()) {
          EXPECT_EQ(param->value().storage().nbytes(), 0u) << param->name();
          EXPECT_EQ(param->value().sizes(), at::IntArrayRef(param->placement().local_shape));
          EXPECT_FALSE(param->has_grad_buffer()) << param->name();
        }
      };
      expect_sharded();
      evaluate(*model, s);
      EXPECT_EQ(fsdp.memory().parameters.peak, root + 2 * layer);
      EXPECT_EQ(fsdp.memory().gradients.peak, 0);
      expect_sharded();
      fsdp.reset_peak_memory();
      fsdp.begin_step();
      run_microbatches(*model, fsdp, groups, s, 0);
      fsdp.finish_step();
      expect_sharded();
      EXPECT_EQ(fsdp.memory().parameters.peak, root + 2 * layer);
      if (s.fsdp.grad_reduce_in_bf16)
        EXPECT_LE(fsdp.memory().gradients.peak, fsdp.whole_gradient_bytes_bound());
      else
        EXPECT_EQ(fsdp.memory().gradients.peak, fsdp.whole_gradient_bytes_bound());

      int64_t held = 0;
      for (const OwnedPart& part : fsdp.model_parts()) held += part.range->size();
      const double all = groups.dp->reduced(static_cast<double>(held), ReduceOp::kSum, "elements");
      int64_t expected = 0;
      for (const auto& [unit, count] : elements) expected += count;
      EXPECT_EQ(static_cast<int64_t>(all), expected);
      model->set_runner(nullptr);
    });
  }
}

TEST(Fsdp, AModelThatNeverExistsWholeIsInitialisedAsAnyOther) {
  Setting s = setting();
  TensorMap expected;
  {
    const auto model = build_model(s.config, tiny_context(Groups::single()));
    model->for_each_parameter([](Parameter& param) { param.initialise(7); });
    expected = values_of(*model);
  }
  ThreadWorld(4).run(Mesh({.tp = 2, .dp = 2}), [&](Groups& groups) {
    LayerContext context = tiny_context(groups);
    context.buffer_device = context.device;
    context.device = at::kMeta;
    const auto model = build_model(s.config, context);
    Fsdp fsdp(model->parameters(), model->blocks(), groups, {.device = *context.buffer_device});
    model->set_runner(fsdp.runner());
    fsdp.initialise(7, /*only_adapters=*/false);
    // A root and no layer, or only a layer: never more than the larger at a time.
    EXPECT_LT(fsdp.memory().parameters.peak, fsdp.whole_parameter_bytes_bound() / 2);

    const auto expect_values = [&](double factor) {
      size_t num_seen = 0;
      fsdp.visit_units([&](const std::vector<Parameter*>& params) {
        for (const Parameter* param : params) {
          ++num_seen;
          for (const Piece& piece : param->placement().pieces) {
            EXPECT_TRUE(at::equal(box_view(param->data(), piece.local),
                                  box_view(expected.at(piece.name), piece.canonical) * factor))
                << piece.name;
          }
          for (const Box& box : padding_boxes(param->placement())) {
            EXPECT_TRUE(at::equal(box_view(param->data(), box), at::zeros(box.extent, at::kDouble)));
          }
        }
      });
      EXPECT_EQ(num_seen, model->parameters().size());
    };
    expect_values(1);
    fsdp.fill_units([&](const std::vector<Parameter*>& params) {
      for (const Parameter* param : params) {
        for (const Piece& piece : param->placement().pieces) {
          box_view(param->data(), piece.local).copy_(box_view(expected.at(piece.name), piece.canonical) * 2);
        }
      }
    });
    expect_values(2);
    EXPECT_EQ(fsdp.memory().parameters.now, 0);
    EXPECT_TRUE(std::isfinite(evaluate(*model, s)));
  });
}

TEST(Fsdp, GeneratesWithACacheAsOneRankDoes) {
  const Setting s = setting();
  const auto logits_of = [&](Model& model) {
    const at::NoGradGuard no_grad;
    const NaiveInput batch = tiny_batch(s.config, 2, 7, false);
    KvCache cache{.capacity = 7};
    std::vector<at::Tensor> all;
    for (const int64_t length : {4, 1, 2}) {
      ModelInput input{.tokens = batch.tokens.narrow(1, cache.length, length)};
      input.context.b = 2;
      input.context.s = length;
      input.context.is_training = false;
      input.context.cache = &cache;
      all.push_back(model.forward(input, {}, HeadOutput::kLastLogits).logits);
      cache.length += length;
    }
    return at::cat(all, 1);
  };
  const Groups single = Groups::single();
  const at::Tensor expected = logits_of(*make_model(single, s));
  ThreadWorld(3).run(Mesh({.dp = 3}), [&](Groups& groups) {
    const auto model = make_model(groups, s);
    Fsdp fsdp(model->parameters(), model->blocks(), groups, {});
    model->set_runner(fsdp.runner());
    EXPECT_TRUE(at::equal(logits_of(*model), expected));
  });
}

TEST(Fsdp, AStepWithoutContributionsHasZeroGradients) {
  const Setting s = setting();
  ThreadWorld(2).run(Mesh({.dp = 2}), [&](Groups& groups) {
    const auto model = make_model(groups, s);
    Fsdp fsdp(model->parameters(), model->blocks(), groups, {});
    model->set_runner(fsdp.runner());
    fsdp.begin_step();
    run_microbatches(*model, fsdp, groups, s, 0);
    fsdp.finish_step();
    for (const OwnedPart& part : fsdp.parts()) EXPECT_NE(part.grad.abs().max().item<double>(), 0);
    fsdp.begin_step();
    fsdp.finish_step();
    for (const OwnedPart& part : fsdp.parts()) EXPECT_EQ(part.grad.abs().max().item<double>(), 0);
  });
}

TEST(Fsdp, BackwardOutsideAStepIsRefused) {
  const Setting s = setting();
  const Groups groups = Groups::single();
  const auto model = make_model(groups, s);
  Fsdp fsdp(model->parameters(), model->blocks(), groups, {});
  const at::Tensor inputs = at::ones({2, s.config.hidden_size}, at::kDouble).requires_grad_(true);
  const Block& layer = model->blocks().at(1);
  const auto outputs = fsdp.run(layer, {inputs}, [](const std::vector<at::Tensor>& given) { return given; });
  EXPECT_THROW(outputs.at(0).sum().backward(), InternalError);
}

}  // namespace
}  // namespace megalith
