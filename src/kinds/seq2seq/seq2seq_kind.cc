#include "kinds/seq2seq/seq2seq_kind.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "core/number_of.h"
#include "models/encoder_decoder.h"
#include "train/activation_report.h"

namespace megalith {
namespace {

at::Tensor row_of(const std::vector<int64_t>& ids, at::Device device) {
  return at::tensor(at::ArrayRef<int64_t>(ids), at::kLong).unsqueeze(0).to(device);
}

}  // namespace

CostShape Seq2SeqKind::sample_shape(const Resolved& run) const {
  const int64_t length = run.derived.seq_length;
  return {.b = 1, .s = run.config.task.decoder_seq_length.value_or(length), .encoder_s = length};
}

int64_t Seq2SeqKind::tokens_per_sample(const Resolved& run) const {
  const CostShape shape = sample_shape(run);
  return shape.s + shape.encoder_s;
}

void Seq2SeqKind::complete_shapes(ModelInput& input, const Resolved& run, int64_t encoder_s) const {
  input.context.encoder_s = encoder_s;
  add_shapes(input, run.config.model, kEncoderInputs);
}

// The decoder's sequences are split as the encoder's are.
void Seq2SeqKind::check_sequence_parallel(const Resolved& run, std::vector<UserError>& errors) const {
  const Derived& d = run.derived;
  const int64_t tp = run.config.parallel.tensor_model_parallel_size, decoder = sample_shape(run).s;
  if (decoder != d.seq_length && d.micro_batch_size * decoder % tp != 0) {
    errors.emplace_back(
        fmt::format("sequence_parallel splits the {} tokens of a decoder's microbatch (micro_batch_size "
                    "{} × decoder_seq_length {}) over tensor_model_parallel_size {} ranks, and they do "
                    "not divide",
                    d.micro_batch_size * decoder, d.micro_batch_size, decoder, tp),
        fmt::format("set decoder_seq_length or micro_batch_size to a multiple of {}, or leave "
                    "sequence_parallel out",
                    tp));
  }
  TokenKind::check_sequence_parallel(run, errors);
}

void Seq2SeqKind::check_layout(const Config& config, std::vector<UserError>& errors) const {
  if (config.parallel.context_parallel_size == 1) return;
  errors.emplace_back(
      fmt::format("context_parallel_size is {}, and model_type t5 has two sequences, which would both have to be cut",
                  config.parallel.context_parallel_size),
      "set context_parallel_size to 1; tensor, pipeline and data parallelism take model_type t5");
}

std::string Seq2SeqKind::sample_text(const Resolved& run) const {
  return fmt::format("{} + {}", sample_shape(run).encoder_s, TokenKind::sample_text(run));
}

ModelInput Seq2SeqKind::some_input(const ModelConfig& config) const {
  ModelInput input = TokenKind::some_input(config);
  input.context.encoder_s = input.context.s;
  input.more.set(input::kEncoderTokens.name, input.tokens.flip(1));
  return input;
}

std::vector<UserError> Seq2SeqKind::check_given(const GivenInput& given) const {
  if (!given.prompt_ids.empty() && !given.target_ids.empty()) return {};
  return {
      UserError(fmt::format("a model of model_type t5 needs prompt_ids and target_ids, and {} is not given",
                            given.prompt_ids.empty() ? "prompt_ids" : "target_ids"),
                "give what the encoder reads and what the decoder is to write: --prompt_ids 1,2,3 --target_ids 4,5")};
}

// The decoder gets its first token and all targets but the last.
ModelInput Seq2SeqKind::make_input(const GivenInput& given, const ModelConfig& config, at::Device device) const {
  std::vector<int64_t> before = {config.bos_token_id.value_or(0)};
  before.insert(before.end(), given.target_ids.begin(), given.target_ids.end() - 1);
  ModelInput input;
  input.tokens = row_of(before, device);
  input.labels = row_of(given.target_ids, device);
  input.loss_weights = at::ones(input.labels.sizes(), at::TensorOptions(device).dtype(at::kFloat));
  input.context.b = 1;
  input.context.s = std::ssize(before);
  input.context.encoder_s = std::ssize(given.prompt_ids);
  input.context.is_training = false;
  input.more.set(input::kEncoderTokens.name, row_of(given.prompt_ids, device));
  input.terms[0] = {"lm loss", at::scalar_tensor(1 / static_cast<double>(given.target_ids.size()), at::kDouble)};
  return input;
}

}  // namespace megalith
