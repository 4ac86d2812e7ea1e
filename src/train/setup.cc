// Building a run's objects; see setup.h.
#include "train/setup.h"

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/hf.h"
#include "comm/single_group.h"
#include "core/error.h"

namespace megalith {

BuiltModel build_model(const Resolved& resolved, const Groups& groups, at::Device device, bool allocates_weights) {
  ModelConfig config = resolved.config.model;
  config.vocab_size = resolved.derived.vocab_size;
  LayerContext context;
  context.groups = &groups;
  context.dtype = resolved.derived.dtype;
  context.device = allocates_weights ? device : at::kMeta;
  context.buffer_device = device;
  context.kernels = resolved.config.runtime.kernels;
  context.is_sequence_parallel = resolved.derived.is_sequence_parallel;
  context.seed = static_cast<uint64_t>(resolved.config.train.seed);
  context.recompute = resolved.config.recompute.selective();
  BuiltModel built;
  built.recompute = make_recompute_plan(resolved.config.recompute, 0, config.num_layers);
  built.family = &family_for(config);
  const StageRange whole{.num_layers = config.num_layers, .layers_per_block = built.recompute.layers_per_block};
  built.model = built.family->build(config, context, whole);
  return built;
}

void load_weights(const Resolved& resolved, const BuiltModel& built, const Groups& groups, Logger& log) {
  const CheckpointOptions& options = resolved.config.checkpoint;
  if (options.load) {
    const auto found = find_checkpoint(*options.load, options.ckpt_step, *groups.world, log);
    if (!found) {
      throw UserError(fmt::format("{} holds no checkpoint", *options.load),
                      "give the folder that --save named, or one checkpoint of it");
    }
    CheckpointState state;
    state.tensors = model_tensors(built.model->parameters());
    state.architecture = architecture_of(built.model->config());
    load_checkpoint(found->folder, state, groups, {.with_optimizer = false});
    return;
  }
  if (options.load_hf) {
    load_hf(*options.load_hf, model_tensors(built.model->parameters()), groups);
    return;
  }
  throw UserError("no weights given", "name them with --load DIR or --load_hf DIR");
}

std::unique_ptr<Tokenizer> find_tokenizer(const Resolved& resolved) {
  const CheckpointOptions& options = resolved.config.checkpoint;
  if (options.load_hf && std::filesystem::exists(std::filesystem::path(*options.load_hf) / "tokenizer.json")) {
    TokenizerOptions tokenizer;
    tokenizer.tokenizer_type = "HuggingFaceTokenizer";
    tokenizer.tokenizer_model = *options.load_hf;
    return make_tokenizer(tokenizer);
  }
  auto bytes = make_byte_tokenizer();
  if (bytes->vocab_size() == resolved.derived.vocab_size) return bytes;
  return nullptr;
}

std::vector<int64_t> find_stop_ids(const Resolved& resolved, const Tokenizer* tokenizer) {
  std::vector<int64_t> ids = resolved.config.model.eos_token_ids;
  if (tokenizer != nullptr && tokenizer->eod()) ids.push_back(*tokenizer->eod());
  return ids;
}

DataSetup make_data_setup(const Resolved& resolved) {
  const Derived& d = resolved.derived;
  const TrainOptions& train = resolved.config.train;
  DataSetup setup;
  setup.sequence_length = d.seq_length;
  setup.seed = static_cast<uint32_t>(train.seed);
  setup.vocab_size = d.vocab_size;
  setup.eod = d.eod_id;
  if (resolved.tokenizer != nullptr) {
    // A padding token that also ends documents must keep its loss.
    if (resolved.tokenizer->pad() && *resolved.tokenizer->pad() != d.eod_id) setup.pad_id = *resolved.tokenizer->pad();
  }
  const int64_t eval_samples = train.eval_iters * d.global_batch_size;
  setup.num_samples = {train.skip_train ? 0 : d.train_samples, (d.train_iters / train.eval_interval + 1) * eval_samples,
                       eval_samples};
  return setup;
}

}  // namespace megalith
