// See task_options.h.
#include "train/task_options.h"

#include "models/model_bounds.h"

namespace megalith {

void TaskOptions::visit(OptionVisitor& v) {
  constexpr OptionTraits kOfTasks{.in_toy = InToy::kMade, .acts_in = {RunCommand::kEvaluate}};
  v.group("Task", kOfTasks.of(kAllModels - kClassifiers));
  v.choice("task", task, {"causal_lm", "masked_lm", "bert", "t5", "ict", "flow_matching", "classification"},
           "What the model learns. causal_lm: to predict the next token of a text. masked_lm: to predict masked tokens "
           "from both sides, as RoBERTa does; needs is_causal false. bert: Megatron-LM's BERT, which reads sentences, "
           "hides whole words, and says whether two segments are in order. t5: to write what is hidden of sentences; "
           "needs an encoder and a decoder. ict: to find the text that a sentence was taken from; needs model_type "
           "biencoder. flow_matching: to tell noise from pictures (rectified flow); needs model_type diffusion_model. "
           "classification: to tell the class of a text or a pair of texts; needs model_type classifier.")
      .read_by(kAllModels);
  v.field("mask_prob", mask_prob,
          "masked_lm, bert, t5: the share of tokens that are to be predicted. masked_lm and bert replace 80 % of them "
          "by the mask token and 10 % by a random one, and 10 % stay as they are; t5 replaces spans by sentinels.")
      .above(0)
      .at_most(1);
  v.field("mask_token_id", mask_token_id, "masked_lm: id of the mask token. Default: the tokenizer's.")
      .within(0, kMostVocabulary);
  v.field("short_seq_prob", short_seq_prob, "bert, t5: the share of samples that are cut to a random shorter length.")
      .within(0, 1);
  v.field("decoder_seq_length", decoder_seq_length,
          "t5: tokens that the decoder reads and writes of a sample; seq_length is the encoder's.")
      .unit("tokens")
      .within(2, INT32_MAX)
      .in_toy(InToy::kMade);
  v.field("titles_data_path", titles_data_path,
          "ict: prefix of the token files with the titles, one document for each of data_path's. Default: the texts "
          "have no titles.")
      .by_rank(ByRank::kSameContents)
      .read_by(kBiencoders)
      .acts_in({RunCommand::kEvaluate, RunCommand::kEmbed});
  v.field("query_in_block_prob", query_in_block_prob,
          "ict: in this share of the samples the sentence that is the question also stays in its text.")
      .within(0, 1)
      .read_by(kBiencoders);
  v.field("use_one_sent_docs", use_one_sent_docs,
          "ict: also take documents of one sentence, and blocks of one. Without it a block has two at least.")
      .read_by(kBiencoders)
      .acts_in({RunCommand::kEvaluate, RunCommand::kEmbed});
  v.group("Task", kOfTasks.of(kPictureModels));
  v.choice("timestep_sampling_strategy", timestep_sampling_strategy, {"uniform", "logit_normal", "mode", "fixed"},
           "flow_matching: how the share of noise in a sample is drawn, between 0 and 1. uniform: all alike. "
           "logit_normal: more from the middle, the logistic function of a normal number with logit_mean and "
           "logit_std. mode: by mode_scale more or less from the middle. fixed: always fixed_timestep.");
  v.field("logit_mean", logit_mean, "See timestep_sampling_strategy.").within(-100, 100);
  v.field("logit_std", logit_std, "See timestep_sampling_strategy.").above(0).at_most(100);
  v.field("mode_scale", mode_scale, "See timestep_sampling_strategy.").within(-1, 1.75);
  v.field("fixed_timestep", fixed_timestep, "See timestep_sampling_strategy.").within(0, 1);
  v.field("flow_shift", flow_shift,
          "flow_matching: moves drawn shares of noise t towards more of it, to s t / (1 + (s - 1) t), this being s. 0: "
          "by the picture's tokens, as FLUX.1 dev is sampled (e^0.5 for 256 of them, e^1.15 for 4096). Default: they "
          "stay as they are drawn.")
      .within(0, 1000);
  v.field("cfg_dropout_prob", cfg_dropout_prob,
          "flow_matching: the share of samples whose caption is replaced by an empty one, so that the model can be "
          "sampled with guidance: one number, or T5's and CLIP's, which are drawn apart. Default: none.")
      .within(0, 1);
  v.field("guidance_scale", guidance_scale,
          "flow_matching: the strength of guidance that a model with guidance_embed is told while it is trained.")
      .within(0, 1000);
}

}  // namespace megalith
