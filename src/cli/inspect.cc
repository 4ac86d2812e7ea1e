// megalith inspect: contents of a configuration, data set, tokenizer, checkpoint or model.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folder_kind.h"
#include "checkpoint/manifest.h"
#include "checkpoint/object_checkpoints.h"
#include "cli/help.h"
#include "cli/inspect_data.h"
#include "cli/inspect_model.h"
#include "cli/inspect_picture.h"
#include "cli/inspect_run.h"
#include "cli/inspect_sft.h"
#include "cli/inspect_tokenizer.h"
#include "cli/print.h"
#include "cli/session.h"
#include "config/accepted_names.h"
#include "config/help.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/number_of.h"
#include "core/strings.h"
#include "foreign/foreign_checkpoint.h"
#include "kinds/kinds.h"
#include "train/setup.h"

namespace megalith {
namespace {

struct ConfigInspection {
  std::optional<std::string> explain_key;
  bool all = false, markdown = false, accepted_names = false;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("explain", explain_key, "Show every layer that gave this option a value.");
    v.field("all", all, "Also show options that have their default value.");
    v.field("markdown", markdown, "Print the reference page of all options.");
    v.field("accepted_names", accepted_names, "Print the page on names of other programs.");
  }
};

struct CheckpointInspection {
  std::optional<std::string> load;

  void visit(OptionVisitor& v) {
    v.group("Inspection");
    v.field("load", load, "A run's folder, a folder of checkpoints, or one checkpoint of it: another way to give DIR.");
  }
};

// `inspect config [--config FILE] [options] [--explain KEY]`: every option's value and its source.
int inspect_config(CommandContext& context) {
  ConfigInspection own;
  // A configuration that cannot run can still be inspected: only unreadable options are errors here.
  Resolved resolved(all_kinds(), [&](OptionVisitor& v) { own.visit(v); });
  const Resolution resolution = resolve(*resolved.options, context.config_inputs());
  if (resolution.wants_help) {
    return print_help(context, "usage: megalith inspect config [--config FILE] [--option value ...] [--explain KEY]",
                      *resolved.options);
  }
  for (const std::string& note : resolution.notes) context.log.note("{}", note);
  if (own.accepted_names) {
    print_out("{}", accepted_names_markdown());
    return kExitSuccess;
  }
  if (own.markdown) {
    // The command's own options are not part of the page.
    Config defaults;
    print_out("{}", options_markdown(OptionSet(defaults), "Options of megalith train"));
    return kExitSuccess;
  }
  if (own.explain_key) {
    const Option* option = resolved.options->find(*own.explain_key);
    if (option == nullptr) {
      const std::string nearest = resolved.options->nearest(*own.explain_key);
      throw UserError(fmt::format("no option is called '{}'.{}", *own.explain_key,
                                  nearest.empty() ? "" : fmt::format(" Did you mean '{}'?", nearest)));
    }
    print_out("{}\n", explain(*option));
    return kExitSuccess;
  }
  print_out("{}", resolved_yaml(*resolved.options, own.all ? Shown::kAll : Shown::kNonDefault));
  return kExitSuccess;
}

// Another trainer's checkpoint: what it records, and its tensors as ours if it says of which model they are.
int inspect_foreign(const ForeignFolder& found) {
  const ForeignRecord record = read_foreign_record(found);
  const int64_t consumed = record.train.consumed_train_samples;
  print_out("{}: {}\n  iteration {}, {} updates, {} consumed\n", found.folder.string(), name_of(found.kind),
            record.train.iteration, record.train.optimizer_step,
            consumed == kUnknownSamples ? "an unrecorded number of samples" : number_of(consumed, "sample", "samples"));
  if (holds_adapters(found)) {
    print_out("  adapters: train goes on with them with --load_hf MODEL --load DIR\n");
    return kExitSuccess;
  }
  if (!record.says_architecture()) {
    print_out("  its architecture is not recorded: convert reads it with --hf_config DIR\n");
    return kExitSuccess;
  }
  print_out("  {}\n", report_of(open_foreign_tensors(found, CanonicalModel(foreign_architecture(found, record)))));
  return kExitSuccess;
}

// `inspect checkpoint DIR`: contents of a checkpoint folder, and its checksums.
int inspect_checkpoint(CommandContext& context) {
  CheckpointInspection own;
  OptionSet set(own);
  const auto words = context.read_words(set, "usage: megalith inspect checkpoint DIR");
  if (!words) return kExitSuccess;
  std::vector<std::string> given = *words;
  if (own.load) given.push_back(*own.load);
  if (given.size() != 1) {
    throw UserError(given.empty() ? "no checkpoint given" : "several folders given",
                    "name one: inspect checkpoint DIR");
  }
  const std::filesystem::path root = checkpoints_of(pull_checkpoints(given[0], context.log));
  if (const auto foreign = find_foreign(root, std::nullopt)) return inspect_foreign(*foreign);
  if (const auto error = check_checkpoint_path("inspect checkpoint", root, /*may_be_absent=*/false)) throw *error;
  std::vector<std::filesystem::path> folders;
  if (std::filesystem::exists(root / kManifestFile)) {
    folders.push_back(root);
  } else {
    for (const int64_t iteration : list_checkpoints(root)) folders.push_back(checkpoint_folder(root, iteration));
  }
  Groups groups = Groups::single();
  bool is_intact = true;
  for (const std::filesystem::path& folder : folders) {
    const std::vector<std::string> faults = verify_checkpoint(folder, *groups.world);
    if (!faults.empty()) {
      is_intact = false;
      print_out("{}: damaged\n", folder.string());
      for (const std::string& fault : faults) print_out("  {}\n", fault);
      continue;
    }
    const Manifest manifest = load_manifest(folder);
    print_out("{}: intact\n  iteration {}, {} consumed, torch {}\n", folder.string(), manifest.train.iteration,
               number_of(manifest.train.consumed_train_samples, "sample", "samples"), manifest.torch_version);
    std::map<std::string, std::pair<int64_t, int64_t>> by_key;  // elements, pieces
    for (const StoredChunk& chunk : manifest.chunks) {
      by_key[chunk.key].first += chunk.box.num_elements();
      by_key[chunk.key].second += 1;
    }
    for (const auto& [key, count] : by_key) {
      print_out("  {:<12} {} elements in {} tensors\n", key, count.first, count.second);
    }
  }
  return is_intact ? kExitSuccess : kExitFailure;
}

constexpr Command kTopics[] = {
    {"config", "a resolved configuration, with the layer that set each value", inspect_config},
    {"data", "counts, lengths and beginnings of .bin/.idx files; samples in training order", inspect_data},
    {"tokenizer", "vocabulary; encode or decode", inspect_tokenizer},
    {"sft", "which tokens of instruction data count in the loss", inspect_sft},
    {"picture", "a picture as it is read, and as an image model is given it", inspect_picture},
    {"checkpoint", "what a checkpoint folder holds, and whether it is intact", inspect_checkpoint},
    {"run", "the story of a run from the folder of --output_dir: starts, losses, speed, files", inspect_run},
    {"runs", "several runs compared: losses, speed, options, and a web page with their curves", inspect_runs},
    {"logits", "a model's logits for a prompt, as safetensors", inspect_logits},
    {"gradients", "every gradient of a model on a batch, as safetensors", inspect_gradients},
};

}  // namespace

int run_inspect(CommandContext& context) { return run_topic(context, "inspect", kTopics); }

std::vector<CommandOptions> inspect_options() {
  return {options_of<ConfigInspection, Config>("inspect config"),
          inspect_data_options(),
          inspect_tokenizer_options(),
          inspect_sft_options(),
          inspect_picture_options(),
          options_of<CheckpointInspection>("inspect checkpoint"),
          inspect_runs_options(),
          inspect_logits_options(),
          inspect_gradients_options()};
}

}  // namespace megalith
