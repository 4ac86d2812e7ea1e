// See inspect_data.h.
#include "cli/inspect_data.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/json.h"
#include "data/blend.h"
#include "data/data_sets.h"
#include "data/dataset_tools.h"
#include "data/prepared_outputs.h"
#include "hub/hub.h"
#include "kinds/tasks.h"
#include "tokenizer/tokenizer.h"

namespace megalith {
namespace {

constexpr int64_t kShownTokens = 32;

struct DataInspection {
  int64_t num_samples = 3;
  std::optional<std::string> print_samples;
  std::optional<int64_t> total_samples;
  bool print_masks = false;
  int64_t seq_length = 0, seed = 1234;
  std::optional<int64_t> eod;
  bool bert_binary_head = true;
  TaskOptions task;
  DataOptions data;
  TokenizerOptions tokenizer;
  HubOptions hub;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("num_samples", num_samples, "Number of documents to show, or of samples to print.").at_least(0);
    v.field("print_samples", print_samples,
            "Print the first samples of this split in the order of training, one JSON object a line.")
        .words({"train", "valid", "test"});
    v.field("total_samples", total_samples,
            "print_samples: how many samples the run reads from the split, because epochs and order depend on it. "
            "Default: num_samples.")
        .at_least(1);
    v.field(
        "print_masks", print_masks,
        "print_samples: also print loss_mask, position_ids and, with reset_attention_mask, document_ids. Samples of "
        "tasks other than causal_lm are always printed whole.");
    v.field("seq_length", seq_length, "print_samples: tokens of a sample.").within(0, INT32_MAX);
    v.field("seed", seed, "print_samples: seed of the order.").within(0, UINT32_MAX);
    v.field("eod", eod,
            "print_samples: id of the token that ends a document, when there is no tokenizer that knows it.")
        .at_least(0);
    v.field("bert_binary_head", bert_binary_head,
            "print_samples: samples of task bert for a model with a sentence head: two segments each.")
        .opposite("bert_no_binary_head");
    task.visit(v);
    data.visit(v);
    tokenizer.visit_standalone(v);
    hub.visit(v);
  }
};

std::vector<int64_t> row_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  return {wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
}

OrderedJson causal_line(const Batch& batch, bool with_masks) {
  OrderedJson line;
  line["tokens"] = row_of(batch.at(field::kTokens));
  line["labels"] = row_of(batch.at(field::kLabels));
  if (with_masks) {
    line["loss_mask"] = row_of(batch.at(field::kLossWeights));
    line["position_ids"] = row_of(batch.at(field::kPositionIds));
    if (batch.has(field::kDocumentIds)) line["document_ids"] = row_of(batch.at(field::kDocumentIds));
  }
  return line;
}

// Every field of the only row.
OrderedJson whole_line(const Batch& batch) {
  OrderedJson line;
  for (const BatchField& field : batch.fields()) {
    if (field.name == field::kSampleIndex) continue;
    std::vector<int64_t> values = row_of(field.tensor);
    line[field.name] = field.tensor.dim() > 1 ? OrderedJson(std::move(values)) : OrderedJson(values.at(0));
  }
  return line;
}

std::unique_ptr<Task> task_of(const DataInspection& options, const Tokenizer* tokenizer, const DataSetup& data) {
  TaskSetup setup;
  setup.seed = data.seed;
  setup.tokenizer = tokenizer;
  setup.has_sentence_head = options.bert_binary_head;
  if (data.vocab_size != INT64_MAX) setup.vocab_size = data.vocab_size;
  if (tokenizer != nullptr) setup.special_ids = tokenizer->special_ids();
  if (data.eod) setup.special_ids.eod = narrow<int32_t>(*data.eod);
  return make_task(options.task, setup);
}

void print_samples(const DataInspection& options, const Tokenizer* tokenizer, Logger& log) {
  if (options.seq_length == 0) throw UserError("print_samples needs seq_length", "give --seq_length N");
  const auto split = static_cast<size_t>(
      std::find_if(kSplits.begin(), kSplits.end(), [&](Split s) { return split_name(s) == *options.print_samples; }) -
      kSplits.begin());
  DataSetup setup;
  setup.sequence_length = options.seq_length;
  setup.seed = static_cast<uint32_t>(options.seed);
  setup.eod = options.eod;
  if (tokenizer != nullptr) {
    setup.vocab_size = tokenizer->vocab_size();
    if (!setup.eod) setup.eod = tokenizer->eod();
    if (tokenizer->pad() && *tokenizer->pad() != setup.eod) setup.pad_id = *tokenizer->pad();
  } else if (options.tokenizer.vocab_size) {
    setup.vocab_size = *options.tokenizer.vocab_size;
  }
  setup.num_samples[split] = std::max(options.num_samples, options.total_samples.value_or(0));
  const std::unique_ptr<Task> task = task_of(options, tokenizer, setup);
  const DataSets sets = task->open_data(options.data, setup, log);
  BatchSource* source = sets.of(kSplits[split]);
  if (source == nullptr) {
    if (options.num_samples == 0) return;
    throw UserError(fmt::format("the {} split does not exist", *options.print_samples), "give it a weight in --split");
  }
  for (int64_t i = 0; i < options.num_samples; ++i) {
    const Batch batch = source->read({.consumed_samples = i});
    const bool is_causal = options.task.task == TaskKind::kCausalLm;
    const OrderedJson line = is_causal ? causal_line(batch, options.print_masks) : whole_line(batch);
    print_out("{}\n", dump_json(line));
  }
}

void print_contents(const std::string& prefix, int64_t num_documents, const Tokenizer* tokenizer) {
  const IndexedDataset data(prefix);
  const LengthHistogram lengths = measure_lengths(data);
  print_out("{}\n  documents {}\n  sequences {}\n  tokens {} of {} bytes\n", data.name(), data.num_documents(),
            data.num_sequences(), data.num_tokens(), token_bytes_of(data.token_type()));
  print_out("  sequence length: shortest {}, mean {:.1f}, longest {}\n{}", lengths.shortest, lengths.mean,
            lengths.longest, draw(lengths));
  for (int64_t i = 0; i < std::min(num_documents, data.num_sequences()); ++i) {
    std::vector<int64_t> ids(static_cast<size_t>(std::min(data.sequence_length(i), kShownTokens)));
    data.read(i, 0, static_cast<int64_t>(ids.size()), ids.data());
    print_out("  {}: {}\n", data.describe(i), dump_json(Json(ids)));
    if (tokenizer != nullptr) {
      std::vector<int32_t> known;
      for (const int64_t id : ids) {
        if (id >= 0 && id < tokenizer->vocab_size()) known.push_back(static_cast<int32_t>(id));
      }
      print_out("    {}\n", dump_json(Json(tokenizer->decode(known))));
    }
  }
}

}  // namespace

int inspect_data(CommandContext& context) {
  DataInspection options;
  OptionSet set(options);
  const auto words =
      context.read_words(set,
                         "usage: megalith inspect data PREFIX ...\n"
                         "       megalith inspect data --data_path PREFIX ... --print_samples train --seq_length N");
  if (!words) return kExitSuccess;
  options.data.data_path.insert(options.data.data_path.begin(), words->begin(), words->end());
  resolve_hub_option("tokenizer_model", options.tokenizer.tokenizer_model, HubNeed::kTokenizer, context.environment,
                     options.hub, context.log);
  const std::unique_ptr<Tokenizer> tokenizer =
      options.tokenizer.is_named() ? make_tokenizer(options.tokenizer) : nullptr;
  if (options.print_samples) {
    print_samples(options, tokenizer.get(), context.log);
    return kExitSuccess;
  }
  const DataOptions listed = with_listed_paths(options.data);
  std::vector<std::string> prefixes;
  for (const auto* paths :
       {&listed.data_path, &listed.train_data_path, &listed.valid_data_path, &listed.test_data_path}) {
    for (const std::string& name : parse_blend(*paths, "data_path").prefixes) {
      const std::string prefix =
          resolve_hub_path("data_path", name, HubNeed::kTokenData, context.environment, options.hub, context.log)
              .string();
      print_contents(prefix, options.num_samples, tokenizer.get());
      prefixes.push_back(prefix);
    }
  }
  if (auto mixed = find_mixed_tokenizers(prefixes)) context.log.warn("{}", mixed->message());
  if (prefixes.empty()) throw UserError("no data set given", "name the prefix of its .bin and .idx files");
  return kExitSuccess;
}

CommandOptions inspect_data_options() { return options_of<DataInspection>("inspect data"); }

}  // namespace megalith
