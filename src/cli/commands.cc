// The table of subcommands: part of the program, not of this folder's library, since it also names bench/.
#include "cli/command.h"

namespace megalith {
namespace {

constexpr Command kCommands[] = {
    {"train", "pre-train or fine-tune a model", run_train, train_options},
    {"launch", "a run by the variables of other tools' scripts", run_launch, launch_options},
    {"prepare", "JSON lines or plain text into .bin/.idx token files", run_prepare, prepare_options},
    {"fetch", "models, tokenizers and data sets from the Hugging Face hub into its cache", run_fetch, fetch_options},
    {"generate", "text from a checkpoint or a Hugging Face folder", run_generate, generate_options},
    {"chat", "a conversation with a model in the terminal, by its chat template", run_chat, chat_options},
    {"evaluate", "loss and perplexity on a data set", run_evaluate, evaluate_options},
    {"serve", "a model behind HTTP, in OpenAI's interface", run_serve, serve_options},
    {"embed", "vectors of texts, and the nearest of them", run_embed, embed_options},
    {"inspect", "what is in a configuration, data set, tokenizer, checkpoint or model", run_inspect, inspect_options},
    {"convert", "checkpoints of any layout, Hugging Face folders, other trainers' checkpoints, GGUF", run_convert,
     convert_options},
    {"presets", "the models and recipes that came with the program", run_presets, presets_options},
    {"init", "a commented recipe for one of them, to start from", run_init, init_options},
    {"plan", "what a pipeline schedule costs, as a table and a picture", run_plan, plan_options},
    {"doctor", "whether this machine, or all machines of a launch, are fit for a run", run_doctor, doctor_options},
    {"verify", "judges a training run as AMD's cluster validation suite (CVS) does", run_verify, verify_options},
    {"bench", "speed of the operators and of training on this machine", run_bench, bench_options},
    {"completion", "a script that lets a shell complete commands, options and values", run_completion,
     completion_options},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace megalith
