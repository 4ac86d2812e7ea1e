#include "kinds/text/dpo_reference.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "data/builder_lock.h"
#include "kinds/text/dpo.h"
#include "kinds/text/sft_batches.h"
#include "kinds/text/sft_mix.h"
#include "train/adapters.h"
#include "train/setup.h"
#include "train/step.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// Disables adapters while it lives, by zeroing their second matrices.
class WithoutAdapters {
 public:
  WithoutAdapters(DataParallel& data, bool has_adapters) : data_(data), has_adapters_(has_adapters) {
    if (!has_adapters_) return;
    data_.wait_for_parameters();
    for (const CheckpointTensor& tensor : tensors_by_owner(data_).adapters) {
      const auto& pieces = tensor.placement->pieces;
      if (pieces.empty() || pieces[0].name.find("lora_B") == std::string::npos) continue;
      kept_.emplace_back(tensor.local, tensor.local.clone());
      tensor.local.zero_();
    }
    publish();
  }
  ~WithoutAdapters() {
    if (!has_adapters_) return;  // collective: ranks without adapters publish too
    for (auto& [tensor, value] : kept_) tensor.copy_(value);
    publish();
  }
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

 private:
  void publish() {
    data_.publish();
    data_.wait_for_parameters();
  }

  DataParallel& data_;
  bool has_adapters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

// One for each set.
std::vector<SftRows*> rows_of_pairs(BatchSource* source) {
  std::vector<SftRows*> rows;
  if (source == nullptr) return rows;
  if (auto* one = dynamic_cast<SftRows*>(&source->rows())) rows.push_back(one);
  if (auto* mixed = dynamic_cast<SftMixedRows*>(&source->rows())) {
    for (const auto& set : mixed->sets()) rows.push_back(set.get());
  }
  return rows;
}

// Identifies a published model's weights without reading them.
std::string files_text(const std::string& folder) {
  std::map<std::string, std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    files[entry.path().filename().string()] = fmt::format(
        "{} {}", entry.file_size(error), fs::last_write_time(entry.path(), error).time_since_epoch().count());
  }
  std::string text = fs::absolute(folder).lexically_normal().string();
  for (const auto& [name, facts] : files) text += fmt::format("\n{} {}", name, facts);
  return text;
}

}  // namespace

std::vector<UserError> check_dpo(const Config& config) {
  std::vector<UserError> errors;
  const SftOptions& sft = config.data.sft;
  if (!sft.has_pairs()) return errors;
  if (sft.dpo_reference == DpoReference::kOnTheFly && !config.lora.enabled) {
    errors.emplace_back("dpo_reference on_the_fly trains all weights, and then no model is left to compare with",
                        "leave dpo_reference out, or train adapters: --lora.enabled true");
  }
  // The reference is the model with B at zero, which keeps trained lengths.
  if (config.lora.enabled && config.lora.use_dora) {
    errors.emplace_back(
        fmt::format("loss is {}, and lora.use_dora is on: without their product such adapters are not the base",
                    sft.loss == SftLoss::kDpo ? "dpo" : "kto"),
        "leave lora.use_dora out");
  }
  if (config.lora.enabled && !config.lora.modules_to_save.empty()) {
    errors.emplace_back(
        fmt::format("loss is {}, and lora.modules_to_save trains weights of the model that answers are compared with",
                    sft.loss == SftLoss::kDpo ? "dpo" : "kto"),
        "leave lora.modules_to_save out");
  }
  return errors;
}

std::string DpoReferences::identity() const {
  const CheckpointOptions& options = resolved_.derived.checkpoint;
  std::string text = options.load_hf ? files_text(*options.load_hf) : "";
  text += fmt::format("\n{}\n{}\n", options.pretrained_checkpoint.value_or(""),
                      options.finetune ? options.load.value_or("") : "");
  if (!options.load_hf) text += fmt::format("seed {}", resolved_.config.train.seed);
  const SftOptions& sft = resolved_.config.data.sft;
  text += fmt::format("\n{}", c10::toString(resolved_.derived.dtype));
  if (sft.truncate) text += fmt::format("\n{}", resolved_.derived.seq_length);
  return text;
}

std::vector<at::Tensor> DpoReferences::token_losses(const std::vector<Batch>& batches) {
  std::vector<at::Tensor> losses;
  evaluate_batches(model_, DpoReferenceTask(), batches, groups_, device_, &losses);
  return losses;
}

void DpoReferences::add_to(std::vector<Batch>& batches) {
  if (resolved_.config.data.sft.dpo_reference == DpoReference::kOnTheFly) add_reference(batches);
  if (resolved_.config.data.sft.loss == SftLoss::kKto) add_kl(batches);
}

void DpoReferences::add_reference(std::vector<Batch>& batches) {
  const WithoutAdapters base(data_, /*has_adapters=*/true);
  const std::vector<at::Tensor> losses = token_losses(batches);
  for (size_t i = 0; i < batches.size(); ++i) {
    batches[i].set(BatchField::of_tokens(field::kReferenceLogProbs, losses[i].neg().to(at::kFloat)));
  }
}

// As TRL's, over the global batch: the mean of log p - log p_reference of mismatched answers, at least 0.
void DpoReferences::add_kl(std::vector<Batch>& batches) {
  data_.wait_for_parameters();
  const std::vector<at::Tensor> losses = token_losses(batches);
  at::Tensor numbers = at::zeros({2}, at::kDouble);  // sum, pairs
  for (size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches[i];
    const at::Tensor documents = batch.at(field::kDocumentIds), pairs = batch.at(field::kNumPairs);
    const at::Tensor is_mismatched = documents.remainder(2).eq(1).logical_and(documents.lt(2 * pairs.unsqueeze(1)));
    const at::Tensor ratio = (losses[i].to(at::kDouble) + batch.at(field::kReferenceLogProbs)).neg();
    numbers[0].add_((ratio * batch.at(field::kLossWeights) * is_mismatched).sum());
    numbers[1].add_(pairs.sum());
  }
  numbers = numbers.to(groups_.dp->device());
  groups_.dp->all_reduce(numbers, ReduceOp::kSum, "KL estimate").wait();
  const double kl = std::max(0.0, numbers[0].item<double>() / numbers[1].item<double>());
  for (Batch& batch : batches)
    batch.set(BatchField::of_rows(kKlEstimate, at::full({batch.num_rows()}, kl, at::kFloat)));
}

void DpoReferences::attach(DataSets& data, bool is_at_start) {
  if (resolved_.config.data.sft.dpo_reference != DpoReference::kAhead) return;
  const bool has_adapters = resolved_.config.lora.enabled;
  std::vector<SftRows*> all;
  for (BatchSource* source : data.all()) {
    for (SftRows* rows : rows_of_pairs(source)) all.push_back(rows);
  }
  for (SftRows* rows : all) {
    const std::string prefix = sft_reference_prefix(*rows->set(), identity());
    // Ranks must agree, or some would wait for others that compute nothing.
    const double is_here = has_sft_reference(prefix) ? 1 : 0;
    if (groups_.world->reduced(is_here, ReduceOp::kMin, "reference of pairs") < 1) {
      if (!is_at_start && !has_adapters) {
        throw UserError(
            fmt::format("{}.bin is missing: what the model that training began with says of the pairs", prefix),
            "its weights are not here any more, for the run goes on from a checkpoint: bring the file back, or begin "
            "anew");
      }
      const WithoutAdapters base(data_, has_adapters);
      compute(rows->set(), prefix);
    }
    rows->set_reference(std::make_shared<const SftReference>(prefix, *rows->set()));
  }
}

void DpoReferences::compute(const std::shared_ptr<const SftSet>& set, const std::string& prefix) {
  const auto rows = make_whole_sft_rows(set, resolved_.derived.data, make_data_setup(resolved_));
  const BatchSource source(rows, Order(RowOrder::kRepeated, rows->num_rows(), rows->name()));
  const int64_t n = source.num_samples(), b = resolved_.derived.micro_batch_size, chunk = b * groups_.dp->size();
  log_.info("the model reads the {} {} of {} once, before it is trained", set->num_samples(),
            set->is_rated() ? "answers" : "pairs", set->prefix());
  SftReferenceTable table(*set);
  Progress progress(log_, "reference", n, "sequences");
  for (int64_t first = 0; first < n; first += chunk) {
    const Batch batch = source.read({.consumed_samples = first,
                                     .micro_batch_size = b,
                                     .dp_rank = groups_.dp->rank(),
                                     .dp_size = groups_.dp->size()});
    const at::Tensor own = token_losses({batch})[0].to(at::kFloat).to(groups_.dp->device());
    const at::Tensor all = groups_.dp->gathered(own, "reference of pairs").to(at::kCPU).neg().contiguous();
    for (int64_t row = 0; row < std::min(chunk, n - first); ++row) {
      const float* at = all.const_data_ptr<float>() + row * all.size(1);
      for (const SftPiece& piece : rows->sequences(first + row)) {
        // Labels are the tokens from the second on.
        const int64_t known = std::min(piece.length, set->sequence_length(piece.sample) - 1);
        table.set(piece.sample, 1, {at, static_cast<size_t>(known)});
        at += piece.length;
      }
    }
    progress.set(std::min(first + chunk, n));
  }
  progress.finish();
  // All ranks have the numbers; one of those that share the folder writes.
  const BuilderLock lock(prefix + ".lock");
  if (!has_sft_reference(prefix)) table.write(prefix);
}

}  // namespace megalith
