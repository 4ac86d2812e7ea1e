// The table's rows about data, tokenizers and profiling.
#include "compat/variable.h"

namespace megalith {

std::vector<ScriptVariable> data_variables() {
  using enum VariableKind;
  using enum VariableType;
  constexpr FrontEnds kTokenizers = only(FrontEnd::kLlama2) | only(FrontEnd::kMixtral) | kStanfordScripts;
  constexpr FrontEnds kWordPieceScripts = kBertScripts | kT5Scripts;
  std::vector<ScriptVariable> rows = {
      {{"MOCK_DATA"},
       kOptions,
       kSwitch,
       kRocmScripts | kBenchmarkScripts | kStanfordScripts,
       "1 trains on made-up tokens (sentences for BERT and T5), 0 on the data of DATA_PATH. Stanford's scripts take "
       "DATA_PATH; without it a dry run and TINY=1 make data up, and a run needs one of both.",
       "000:288",
       {{kRocmScripts | kBenchmarkScripts, "1"}}},
      {{"DATA_PATH"},
       kOptions,
       kText,
       kRocmScripts | kBenchmarkScripts | kStanfordScripts,
       "Unless MOCK_DATA=1: the prefix of a .bin and .idx file, or several with weights.",
       "000:182"},
      {{"DATA_DIR"},
       kOptions,
       kText,
       kRocmScripts,
       "With MOCK_DATA=0 and without DATA_PATH: the folder that has bookcorpus_text_sentence.",
       "train_llama3.sh"},
      {{"DATA_CACHE_PATH"},
       kOption,
       kText,
       kRocmScripts,
       "Folder for sample indices, which all machines see. Without it they lie beside the data.",
       "000:213",
       {},
       "data_cache_path"},
      {{"TOKENIZER_MODEL"},
       kOptions,
       kText,
       kRocmScripts,
       "A tokenizer's folder, file, or name on the hub. Made-up tokens need none: it is not opened then.",
       "000:159"},
      {{"TOKENIZER_TYPE"},
       kOptions,
       kText,
       kTokenizers,
       "Kind of the tokenizer, by Megatron-LM's names.",
       "train_llama2.sh",
       {{kRocmScripts, "HuggingFaceTokenizer"},
        {kWordPieceScripts, "BertWordPieceLowerCase"},
        {kGptScripts, "GPT2BPETokenizer"}}},
      {{"VOCAB_FILE"},
       kOptions,
       kText,
       kStanfordScripts,
       "The vocabulary: tokens, one a line, for BERT and T5; vocab.json for GPT. Made-up data needs none.",
       "pretrain_bert.sh",
       {{kWordPieceScripts, "bert-vocab.txt"}, {kGptScripts, "gpt2-vocab.json"}}},
      {{"MERGE_FILE"},
       kOptions,
       kText,
       kGptScripts,
       "merges.txt of GPT's vocabulary.",
       "pretrain_gpt.sh",
       {{kGptScripts, "gpt2-merges.txt"}}},
      {{"CHECKPOINT_PATH"},
       kOptions,
       kText,
       kStanfordScripts,
       "Folder that checkpoints are written to, and that a run goes on from. Without it nothing is saved.",
       "pretrain_bert.sh"},
      {{"ENABLE_PROFILING", "PROFILE"},
       kOptions,
       kSwitch,
       kRocmScripts,
       "1 traces iterations into LOG_DIR, for Perfetto or TensorBoard.",
       "000:276",
       {{kRocmScripts, "0"}}},
      {{"PROFILE_START"},
       kOptions,
       kCount,
       kRocmScripts,
       "Number of iterations done when the trace begins.",
       "train_deepseekv3.sh",
       {{kRocmScripts, "6"}}},
      {{"PROFILE_END"},
       kOptions,
       kCount,
       kRocmScripts,
       "Number of iterations done when the trace ends.",
       "train_deepseekv3.sh",
       {{kRocmScripts, "7"}}},
  };
  for (ScriptVariable& row : rows) {
    if (row.name() == "PROFILE_START") row.least = 0;
  }
  return rows;
}

}  // namespace megalith
