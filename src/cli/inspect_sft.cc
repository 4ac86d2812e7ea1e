#include "cli/inspect_sft.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/help.h"
#include "cli/print.h"
#include "core/error.h"
#include "core/json.h"
#include "core/visible_text.h"
#include "hub/hub.h"
#include "kinds/text/sft_packs.h"
#include "kinds/text/sft_paths.h"
#include "kinds/text/sft_set.h"

namespace megalith {
namespace {

constexpr int64_t kShownByDefault = 1;

struct SftInspection {
  std::optional<std::string> load_hf;
  int64_t samples = kShownByDefault;
  bool json = false;
  std::optional<int64_t> seq_length;
  SftOptions sft;
  TokenizerOptions tokenizer;
  HubOptions hub;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("load_hf", load_hf, "Folder or name of the published model whose tokenizer and chat template are used.");
    v.field("samples", samples, "How many samples are shown; all count in the totals.").at_least(0);
    v.field("json", json,
            "Print each shown sample as a line of JSON: its place, token ids, their weights in the loss, and its text; "
            "then the totals.");
    v.field("seq_length", seq_length, "Also say how many sequences of this length the samples make.")
        .unit("tokens")
        .within(1, INT32_MAX);
    sft.visit_paths(v);
    sft.visit_rows(v);
    sft.visit_sequences(v);
    tokenizer.visit_standalone(v);
    hub.visit(v);
  }
};

// The text of the tokens that count.
std::string text_in_loss(const Tokenizer& tokenizer, const SftSample& sample) {
  std::string text;
  StreamingDecoder decoder(tokenizer, /*skip_special=*/false);
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    const std::string piece = decoder.push(sample.tokens[i]);
    if (sample.weights[i] != 0) text += piece;
  }
  return text + decoder.finish();
}

// A sample's text. On a terminal, tokens in the loss are green and control characters visible; elsewhere those tokens
// are bracketed.
std::string marked_text(const Tokenizer& tokenizer, const SftSample& sample, bool is_terminal) {
  const std::string_view begin = is_terminal ? "\x1b[1;32m" : "⟦", end = is_terminal ? "\x1b[0m" : "⟧";
  const auto shown = [&](std::string piece) { return is_terminal ? visible_text(piece) : std::move(piece); };
  std::string text;
  StreamingDecoder decoder(tokenizer, /*skip_special=*/false);
  bool is_open = false;
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    const bool counts = sample.weights[i] != 0;
    if (counts != is_open) text += is_open ? end : begin;
    is_open = counts;
    text += shown(decoder.push(sample.tokens[i]));
  }
  text += shown(decoder.finish());
  if (is_open) text += end;
  return text;
}

void show_sample(const SftInspection& options, const Tokenizer& tokenizer, const SftSample& sample,
                 const SftLine& line) {
  const bool is_rated = sample.form == SftForm::kRated;
  if (options.json) {
    OrderedJson object = {{"place", line.where()},
                          {"form", sft_form_name(sample.form)},
                          {"tokens", sample.tokens},
                          {"weights", sample.weights},
                          {"text", tokenizer.decode(sample.tokens)},
                          {"text_in_loss", text_in_loss(tokenizer, sample)}};
    if (is_rated) object["is_bad"] = sample.is_bad;
    print_out("{}\n", dump_json(object));
    return;
  }
  print_out("{}: {} tokens, {} in the loss{}\n", line.where(), sample.tokens.size(), sample.num_counted(),
            !is_rated ? "" : sample.is_bad ? ", rated bad" : ", rated good");
  print_coloured(marked_text(tokenizer, sample, ::isatty(STDOUT_FILENO) != 0) + "\n\n");
}

// The samples' sequences, as packed by `train`.
void describe_sequences(const SftInspection& options, const SftReport& report, const std::vector<int64_t>& lengths) {
  const int64_t s = *options.seq_length;
  const bool splits = report.form == SftForm::kText && options.sft.enable_packed_sequences;
  const int64_t longest = lengths.empty() ? 0 : std::ranges::max(lengths);
  if (!splits && !options.sft.truncate && longest > s) {
    const std::string place = report.form == SftForm::kRated ? "with the answer before it" : report.longest_place;
    throw UserError(fmt::format("the longest sample has {} tokens ({}), and seq_length is {}", longest, place, s),
                    "raise --seq_length, cut samples with --truncate, or leave them out");
  }
  const auto length = [&](int64_t i) {
    const int64_t whole = lengths[static_cast<size_t>(i)];
    return splits ? whole : std::min(whole, s);
  };
  const SftPacks packs(0, std::ssize(lengths), length, s, splits, options.sft);
  OrderedJson sequences = OrderedJson::array();
  int64_t tokens = 0;
  for (int64_t i = 0; i < packs.num_packs(); ++i) {
    OrderedJson pieces = OrderedJson::array();
    for (const SftPiece& piece : packs.pack(i)) {
      tokens += piece.length;
      pieces.push_back({piece.sample, piece.offset, piece.length});
    }
    if (options.json) sequences.push_back(std::move(pieces));
  }
  if (options.json) {
    print_out("{}\n", dump_json(OrderedJson{{"sequences", std::move(sequences)}}));
    return;
  }
  print_out("{} sequences of {} tokens, {:.1f} % of them padding\n", packs.num_packs(), s,
            100.0 * (1.0 - static_cast<double>(tokens) / static_cast<double>(packs.num_packs() * s)));
}

}  // namespace

int inspect_sft(CommandContext& context) {
  SftInspection options;
  OptionSet set(options);
  const Resolution resolution = resolve(set, context.config_inputs());
  if (resolution.wants_help) {
    return print_help(context, "usage: megalith inspect sft --load_hf MODEL --sft_data_path FILE", set);
  }
  std::optional<std::string>& model = options.tokenizer.tokenizer_model;
  if (!model) model = options.load_hf;
  if (!model && !options.tokenizer.tokenizer_type) {
    throw UserError("no model is named", "its tokenizer reads the rows: --load_hf MODEL, or --tokenizer_model DIR");
  }
  if (options.sft.sft_data_path.empty()) {
    throw UserError("no instructions are named", "name a file or folder of rows with --sft_data_path");
  }
  resolve_hub_option("load_hf", model, HubNeed::kTokenizer, context.environment, options.hub, context.log);
  options.sft.training_sets();  // refuses wrong weights
  const std::vector<std::string> files = resolve_sft_paths(
      "sft_data_path", options.sft.training_paths(), context.environment, options.hub, options.sft, context.log);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  const SftEncoder encoder(*tokenizer, model.value_or(""), options.sft);
  SftReader reader(files, options.sft.sft_dataset_split, options.sft.sft_column, options.sft.sft_deduplicate);
  for (const std::string& line : reader.skipped()) context.log.note("{}", line);
  SftTally tally(options.sft);
  std::vector<int64_t> lengths, answers;
  int64_t shown = 0;
  encode_sft_rows(reader, encoder, tally, [&](const SftSample& sample, const SftLine& line, bool is_learned) {
    if (is_learned) {
      lengths.push_back(std::ssize(sample.tokens));
      const auto answer = std::ranges::find_if(sample.weights, [](uint8_t weight) { return weight != 0; });
      answers.push_back(sample.weights.end() - answer);
    }
    if (shown++ < options.samples) show_sample(options, *tokenizer, sample, line);
  });
  if (reader.num_repeated() > 0) context.log.note("{}", repeated_rows_text(reader.num_repeated()));
  const SftReport& report = tally.report();
  if (options.json) {
    print_out("{}\n", dump_json(OrderedJson{{"samples", report.samples},
                                            {"tokens", report.tokens},
                                            {"tokens_in_loss", report.counted},
                                            {"rows_without_loss", report.num_without_loss},
                                            {"bad_rows", report.num_bad},
                                            {"longest", report.longest}}));
  } else if (report.samples + report.num_bad + report.num_without_loss > 0) {
    print_out("{}", describe(report));
  }
  tally.check();
  // See SftSet: its question is read once more, with the answer before.
  for (size_t i = 0; report.form == SftForm::kRated && i < answers.size(); ++i) {
    lengths[i] += lengths[i] - answers[i] + answers[i > 0 ? i - 1 : answers.size() - 1];
  }
  if (options.seq_length) describe_sequences(options, report, lengths);
  return kExitSuccess;
}

CommandOptions inspect_sft_options() { return options_of<SftInspection>("inspect sft"); }

}  // namespace megalith
