// See sft_options.h.
#include "data/sft_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "data/blend.h"
#include "data/set_names.h"

namespace megalith {
namespace {

// "code" of "data/code.jsonl.gz[:1000]".
std::string name_of_path(std::string path) {
  path.resize(std::min(path.find('['), path.size()));
  while (path.ends_with('/')) path.pop_back();
  const std::string name = std::filesystem::path(path).filename().string();
  return name.substr(0, name.find('.', 1));
}

}  // namespace

std::vector<std::string> SftOptions::training_paths() const {
  try {
    return parse_blend(sft_data_path, "sft_data_path").prefixes;
  } catch (const UserError&) {  // of training_sets() too
    return {};
  }
}

std::vector<TrainingSet> SftOptions::training_sets() const {
  const BlendSpec blend = parse_blend(sft_data_path, "sft_data_path");
  const bool has_weights = !blend.weights.empty();
  if (!has_weights && sft_set_names.empty() && sft_mix == SftMix::kAuto && !sft_mix_temperature) return {};
  if (blend.prefixes.empty()) {
    throw UserError("sft_set_names, sft_mix or sft_mix_temperature is given without the sets",
                    "name them with --sft_data_path");
  }
  if (has_weights && (sft_mix == SftMix::kConcat || sft_mix_temperature)) {
    const char* other = sft_mix_temperature ? "sft_mix_temperature makes them of the sizes"
                                            : "sft_mix concat takes all rows of all sets";
    throw UserError(fmt::format("sft_data_path has weights, and {}", other),
                    "leave the weights out, or the other option");
  }
  if (sft_mix_temperature && sft_mix == SftMix::kConcat) {
    throw UserError("sft_mix_temperature is given, and sft_mix concat takes all rows of all sets",
                    "leave one of them out");
  }
  std::vector<std::string> names = sft_set_names;
  if (names.empty()) {
    for (const std::string& path : blend.prefixes) names.push_back(name_of_path(path));
    const std::set<std::string> distinct(names.begin(), names.end());
    if (distinct.size() < names.size()) {
      for (size_t i = 0; i < names.size(); ++i) names[i] = std::to_string(i + 1);
    }
  }
  check_set_names("sft_set_names", names, "sft_data_path", blend.prefixes.size());
  std::vector<TrainingSet> sets;
  for (size_t i = 0; i < names.size(); ++i) {
    sets.push_back({names[i], blend.prefixes[i], has_weights ? std::optional(blend.weights[i]) : std::nullopt});
  }
  return sets;
}

void SftOptions::visit_paths(OptionVisitor& v) {
  v.field("sft_data_path", sft_data_path,
          "Files or folders of conversations, instructions or prompts (JSON lines, JSON lists, Parquet), or names of "
          "data sets of the hub: the model is fine-tuned on them, with the loss on the answers only. "
          "FILE[:1000] and NAME[test[:5%]] are parts of them. They are made into tokens first, once; or the prefix of "
          "files that prepare --sft made. WEIGHT PATH WEIGHT PATH … mixes them as sets (sft_mix).")
      .alias("sft_dataset_name")
      .by_rank(ByRank::kSameContents);
}

void SftOptions::visit_rows(OptionVisitor& v) {
  v.field(
      "sft_dataset_split", sft_dataset_split,
      "A folder or data set in sft_data_path gives only the files and folders whose names begin with this word, such "
      "as train_sft. Without it a folder is read whole, and a data set of the hub by its files called train, where "
      "there are any.");
  v.field("sft_column", sft_column,
          "Key or column of rows that are texts and nothing else, where it is not text: all of such a row is learned.");
  v.choice("sft_conversation_format", sft_conversation_format,
           {"auto", "alpaca", "chat_template", "messages", "squad", "alpaca_chat", "alpaca_chatml", "alpaca_phi"},
           "How rows become text. chat_template: by the template that came with the model. messages: by ChatML, not by "
           "the model's template. alpaca: instructions by Stanford Alpaca's words; alpaca_chat, alpaca_chatml and "
           "alpaca_phi: between axolotl's marks of the speakers. squad: instructions as one line of context, question "
           "and answer. auto: conversations by the model's template, instructions by Alpaca's words, prompts and "
           "completions as they are.");
  v.field("train_on_input", train_on_input, "Let questions and instructions count in the loss too.");
  v.field("mask_history", mask_history, "Only the last answer of a conversation counts in the loss.");
  v.field("sft_ignore_keys", sft_ignore_keys,
          "Keys of rows and messages that are passed over. Any other key that nothing reads is an error, except those "
          "that say where a row comes from (id, source, category, …).");
  v.field("sft_rename_keys", sft_rename_keys,
          "Keys of rows under the names that are read here, such as q=instruction,a=output; of messages, "
          "message.speaker=role.");
  v.field("sft_drop_system", sft_drop_system, "Leave the system's messages out of conversations and instructions.");
  v.field("sft_deduplicate", sft_deduplicate, "Leave out rows that repeat an earlier one to the letter.");
  v.field("skip_bad_rows", skip_bad_rows,
          "Leave out up to this many rows that cannot be used, and report their number and the first reasons. Without "
          "it they are errors.")
      .unit("rows")
      .at_least(0);
  v.field("chat_template_kwargs", chat_template_kwargs,
          "Variables of the chat template as a JSON object, such as '{\"enable_thinking\": false}'; a row's own "
          "chat_template_kwargs win.");
  v.field("enable_thinking", enable_thinking, "The chat template's variable of this name.");
}

void SftOptions::visit_sequences(OptionVisitor& v) {
  v.field("truncate", truncate, "Cut samples that are longer than seq_length. Without it they are an error.")
      .read_by(kAllModels);
  v.field(
      "enable_packed_sequences", enable_packed_sequences,
      "Put several samples into a sequence of seq_length. Without it each sample has a sequence of its own, and the "
      "rest of that is padding.");
  v.choice(
      "sft_packing", sft_packing, {"greedy", "first_fit_decreasing"},
      "enable_packed_sequences. greedy: samples keep their order, and the next one begins a new sequence when it "
      "does not fit. first_fit_decreasing: from the longest to the shortest, each into the first sequence that has "
      "room, which leaves less padding.");
  v.field("max_samples_per_sequence", max_samples_per_sequence,
          "enable_packed_sequences: the most samples of one sequence. Default: as many as fit.")
      .unit("samples")
      .at_least(1);
}

void SftOptions::visit(OptionVisitor& v) {
  v.group("Instruction tuning", {.read_by = kAllModels - kClassifiers, .acts_in = {RunCommand::kEvaluate}});
  v.choice(
      "stage", stage, {"auto", "pretrain", "sft"},
      "What kind of data the run learns from. auto: instructions where sft_data_path is given, texts otherwise. sft "
      "and pretrain insist on one of them.");
  visit_paths(v);
  visit_rows(v);
  v.field("sft_set_names", sft_set_names,
          "Names of the paths in sft_data_path, in their order, as sets of their own: each has its loss, train-NAME, "
          "in log and metrics. Default of sets with weights: the names of their files.");
  v.choice("sft_mix", sft_mix, {"auto", "concat", "interleave_under", "interleave_over"},
           "How the sets of sft_data_path make up a pass. concat: all rows of all. interleave_under: in the shares "
           "that the weights say (equal ones without weights), until the first set was read whole; others go on in the "
           "next pass. interleave_over: until every set was read whole; smaller ones are repeated. auto: interleave_under "
           "where weights or sft_mix_temperature are given, concat otherwise.");
  v.field("sft_mix_temperature", sft_mix_temperature,
          "Instead of weights: shares in proportion to rows^(1/T). 1: as concat; larger ones favour small sets.")
      .above(0);
  v.field("sft_valid_data_path", sft_valid_data_path,
          "Files or folders that are used whole for validation; sft_data_path is then used whole for training.")
      .by_rank(ByRank::kSameContents);
  visit_sequences(v);
  v.field(
      "use_packed_attention", use_packed_attention,
      "enable_packed_sequences: a sample attends only to itself, and its positions begin at 0, so that it is learned "
      "as if it had a sequence of its own. false: it also sees the samples before it in the sequence.");
  v.field("balance_sequences", balance_sequences,
          "enable_packed_sequences: share each step's sequences so that attention takes data-parallel ranks, and "
          "neighbouring microbatches of a pipeline, about as long, and order a sequence's samples so that "
          "context-parallel ranks see about as many pairs. A step learns from the same sequences as without it.")
      .acts_in(kTrainOnly);
  v.field("sft_shuffle", sft_shuffle,
          "Learn from the sequences in a new order in each pass, drawn from seed. false: in the order of the rows, pass "
          "after pass; of several sets (sft_mix), one set after the other.")
      .acts_in(kTrainOnly);
  v.choice("loss", loss, {"next_token", "dpo", "kto"},
           "next_token: answers are learned token by token. dpo: of the two answers of a pair (rows with prompt, "
           "chosen and rejected) the chosen one becomes more likely than the rejected one, compared with the model "
           "that training begins with. kto: answers that are good (rows with label true) become more likely, others "
           "less, compared with that model.")
      .acts_in(kTrainOnly);
  v.field("dpo_beta", dpo_beta, "loss dpo, kto: how closely the model is held to the one that training begins with.")
      .above(0)
      .acts_in(kTrainOnly);
  v.choice(
       "dpo_reference", dpo_reference, {"ahead", "on_the_fly"},
       "loss dpo, kto: when the model that training begins with reads the answers. ahead: once, before the first step; "
       "what it says is kept beside the tokens. on_the_fly: in each step, which takes adapters (lora.enabled): "
       "without them the model is what it was.")
      .acts_in(kTrainOnly);
  v.field("kto_desirable_weight", kto_desirable_weight, "loss kto: weight of the loss of good answers.")
      .above(0)
      .acts_in(kTrainOnly);
  v.field("kto_undesirable_weight", kto_undesirable_weight, "loss kto: weight of the loss of bad answers.")
      .above(0)
      .acts_in(kTrainOnly);
}

}  // namespace megalith
