#include "kinds/text/text_task.h"

#include <ATen/ATen.h>

#include "device/transfer.h"
#include "ops/attention/mask_runs.h"

namespace megalith {
namespace {

// The mask's documents and padding of each row, known without asking the device: both are in host memory, written there
// by the data workers.
std::shared_ptr<const ops::MaskRuns> runs_of(const Batch& part) {
  auto runs = std::make_shared<ops::MaskRuns>();
  if (part.has(field::kDocumentIds)) {
    const at::Tensor ids = part.whole(field::kDocumentIds).to(at::kCPU, at::kInt).contiguous();
    const int32_t* id = ids.const_data_ptr<int32_t>();
    for (int64_t row = 0; row < ids.size(0); ++row, id += ids.size(1)) {
      std::vector<int64_t>& begins = runs->documents.emplace_back();
      for (int64_t i = 0; i < ids.size(1); ++i) {
        if (i == 0 || id[i] != id[i - 1]) begins.push_back(i);
      }
    }
  }
  if (part.has(field::kKeyLengths)) {
    const at::Tensor lengths = part.at(field::kKeyLengths).to(at::kCPU, at::kLong).contiguous();
    runs->lengths.assign(lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel());
  }
  runs->plans = ops::make_attention_plans();
  return runs;
}

}  // namespace

DataSets TextTask::open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const {
  DataSets sets = make_data_sets(options, setup, log);
  if (!draws()) return sets;
  for (BatchSource* source : sets.all()) source->then([this](Batch& batch) { draw(batch); });
  return sets;
}

std::vector<std::string> TextTask::loss_names() const { return {"lm loss"}; }

std::vector<double> TextTask::count_weights(const Batch& part) const {
  return {part.at(field::kLossWeights).sum(at::kDouble).item<double>()};
}

ModelInput TextTask::make_input(const Batch& part, at::Device device, std::span<const Unit> units) const {
  std::vector<std::string_view> read = {field::kPositionIds, field::kDocumentIds, field::kKeyLengths};
  if (count_units(units, UnitLetter::kEmbedding) > 0) read.push_back(field::kTokens);
  if (count_units(units, UnitLetter::kHead) > 0) {
    read.push_back(field::kLabels);
    read.push_back(field::kLossWeights);
  }
  const Batch here = part.to(device, read);
  ModelInput input;
  input.tokens = here.find(field::kTokens);
  input.labels = here.find(field::kLabels);
  input.loss_weights = here.find(field::kLossWeights);
  ForwardContext& context = input.context;
  context.b = part.num_rows();
  context.s = part.length(field::kTokens);
  const at::Tensor row_index = part.row_index(field::kTokens);
  const int64_t row_length = part.row_length(field::kTokens);
  context.row_ids = sent_to(part.at(field::kSampleIndex).unsqueeze(1) * row_length + row_index.unsqueeze(0), device);
  if (part.is_part()) {
    context.row_length = row_length;
    context.mask.query_positions = sent_to(row_index, device);
  }
  context.position_ids = here.find(field::kPositionIds);
  if (part.is_part() && !context.position_ids.defined()) {
    // Positions in the whole row; the model would count from 0.
    context.position_ids = context.mask.query_positions.expand({context.b, -1});
  }
  if (part.has(field::kDocumentIds)) {
    context.mask.query_documents = here.at(field::kDocumentIds);
    context.mask.key_documents = here.whole(field::kDocumentIds);
  }
  context.mask.key_lengths = here.find(field::kKeyLengths);
  context.mask.runs = runs_of(part);
  return input;
}

at::Tensor TextTask::evaluate(const Batch& part, const ModelOutput& output) const {
  const at::Tensor& losses = output.token_losses;
  const at::Tensor weights = part.at(field::kLossWeights).to(losses.device(), at::kDouble);
  return at::stack({(losses.to(at::kDouble) * weights).sum(), weights.sum()}).unsqueeze(0);
}

}  // namespace megalith
