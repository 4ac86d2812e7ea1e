// See sft_options.h.
#include "data/sft_options.h"

namespace megalith {

void SftOptions::visit_rows(OptionVisitor& v) {
  v.field("sft_data_path", sft_data_path,
          "Files or folders of conversations, instructions or prompts (JSON lines, JSON lists, Parquet): the model is "
          "fine-tuned on them, with the loss on the answers only. They are made into tokens first, once.")
      .alias("sft_dataset_name");
  v.field(
      "sft_dataset_split", sft_dataset_split,
      "A folder of sft_data_path gives only the files and folders whose names begin with this word, such as train.");
  v.field("sft_column", sft_column,
          "Key or column of rows that are texts and nothing else, where it is not text: all of such a row is learned.");
  v.choice("sft_conversation_format", sft_conversation_format, {"auto", "alpaca", "chat_template"},
           "How rows become text. chat_template: by the template that came with the model. alpaca: instructions by "
           "Stanford Alpaca's words. auto: conversations by the model's template, instructions by Alpaca's words, "
           "prompts and completions as they are.");
  v.field("train_on_input", train_on_input, "Let questions and instructions count in the loss too.");
}

void SftOptions::visit_sequences(OptionVisitor& v) {
  v.field("truncate", truncate, "Cut samples that are longer than seq_length. Without it they are an error.");
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
  v.group("Instruction tuning");
  v.choice(
      "stage", stage, {"auto", "pretrain", "sft"},
      "What kind of data the run learns from. auto: instructions where sft_data_path is given, texts otherwise. sft "
      "and pretrain insist on one of them.");
  visit_rows(v);
  v.field("sft_valid_data_path", sft_valid_data_path,
          "Files or folders that are used whole for validation; sft_data_path is then used whole for training.");
  visit_sequences(v);
  v.field(
      "use_packed_attention", use_packed_attention,
      "enable_packed_sequences: a sample attends only to itself, and its positions begin at 0, so that it is learned "
      "as if it had a sequence of its own. false: it also sees the samples before it in the sequence.");
}

}  // namespace megalith
