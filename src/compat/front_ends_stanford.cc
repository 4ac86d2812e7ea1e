// front_end.h: the scripts of Stanford's Megatron-LM, which train BERT, GPT and T5.
//
// Upstream's values, written as `megalith train` reads them: activations_checkpoint_method uniform is full
// recomputation of every layer, encoder_seq_length is seq_length. data_impl, DDP_impl and distributed_backend change
// nothing here and are left out.
#include "compat/front_end.h"

namespace megalith {
namespace {

using StanfordWords = std::vector<std::pair<std::string_view, std::string_view>>;

StanfordWords joined_words(std::initializer_list<StanfordWords> parts) {
  StanfordWords all;
  for (const StanfordWords& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const StanfordWords kAllScripts = {
    {"weight_decay", "1e-2"}, {"clip_grad", "1.0"},       {"eval_interval", "1000"},
    {"fp16", "true"},         {"log_format", "megatron"},
};
// All but GPT-3's.
const StanfordWords kSmallScripts = {
    {"split", "949,50,1"},      {"lr_warmup_fraction", ".01"}, {"log_interval", "100"},
    {"save_interval", "10000"}, {"eval_iters", "10"},
};
const StanfordWords kTwoByTwo = {{"tensor_model_parallel_size", "2"}, {"pipeline_model_parallel_size", "2"}};
const StanfordWords kRecomputed = {
    {"recompute_granularity", "full"}, {"recompute_method", "uniform"}, {"recompute_num_layers", "1"}};

const StanfordWords kBertWords = joined_words({kAllScripts,
                                               kSmallScripts,
                                               {{"model_type", "bert"},
                                                {"num_layers", "24"},
                                                {"hidden_size", "1024"},
                                                {"num_attention_heads", "16"},
                                                {"seq_length", "512"},
                                                {"max_position_embeddings", "512"},
                                                {"lr", "0.0001"},
                                                {"min_lr", "1.0e-5"},
                                                {"lr_decay_style", "linear"},
                                                {"lr_decay_iters", "990000"}}});

// The 345M model.
const StanfordWords kGptWords = joined_words({kAllScripts,
                                              kSmallScripts,
                                              kRecomputed,
                                              {{"model_type", "gpt"},
                                               {"num_layers", "24"},
                                               {"hidden_size", "1024"},
                                               {"num_attention_heads", "16"},
                                               {"seq_length", "1024"},
                                               {"max_position_embeddings", "1024"},
                                               {"train_iters", "500000"},
                                               {"lr", "0.00015"},
                                               {"min_lr", "1.0e-5"},
                                               {"lr_decay_style", "cosine"},
                                               {"lr_decay_iters", "320000"}}});

const StanfordWords kGpt3Words = joined_words({kAllScripts,
                                               kRecomputed,
                                               {{"model_type", "gpt"},
                                                {"tensor_model_parallel_size", "8"},
                                                {"pipeline_model_parallel_size", "16"},
                                                {"num_layers", "96"},
                                                {"hidden_size", "12288"},
                                                {"num_attention_heads", "96"},
                                                {"seq_length", "2048"},
                                                {"max_position_embeddings", "2048"},
                                                {"micro_batch_size", "1"},
                                                {"global_batch_size", "1536"},
                                                {"rampup_batch_size", "16,16,5859375"},
                                                {"train_samples", "146484375"},
                                                {"lr_decay_samples", "126953125"},
                                                {"lr_warmup_samples", "183105"},
                                                {"lr", "6.0e-5"},
                                                {"min_lr", "6.0e-6"},
                                                {"lr_decay_style", "cosine"},
                                                {"log_interval", "10"},
                                                {"eval_iters", "40"},
                                                {"save_interval", "1000"},
                                                {"split", "98,2,0"},
                                                {"weight_decay", "0.1"},
                                                {"adam_beta1", "0.9"},
                                                {"adam_beta2", "0.95"},
                                                {"init_method_std", "0.006"}}});

const StanfordWords kT5Words = joined_words({kAllScripts,
                                             kSmallScripts,
                                             {{"model_type", "t5"},
                                              {"num_layers", "12"},
                                              {"hidden_size", "768"},
                                              {"num_attention_heads", "12"},
                                              {"kv_channels", "64"},
                                              {"ffn_hidden_size", "3072"},
                                              {"seq_length", "512"},
                                              {"decoder_seq_length", "128"},
                                              {"max_position_embeddings", "512"},
                                              {"micro_batch_size", "16"},
                                              {"train_iters", "1000000"},
                                              {"lr", "0.0001"},
                                              {"min_lr", "0.00001"},
                                              {"lr_decay_style", "linear"},
                                              {"lr_decay_iters", "1000000"}}});

// The 217M model: two BERT-base towers. Upstream leaves global_batch_size, split and min_lr to their defaults.
const StanfordWords kIctWords = {{"model_type", "biencoder"},
                                 {"num_layers", "12"},
                                 {"hidden_size", "768"},
                                 {"num_attention_heads", "12"},
                                 {"micro_batch_size", "32"},
                                 {"seq_length", "256"},
                                 {"max_position_embeddings", "512"},
                                 {"train_iters", "100000"},
                                 {"log_interval", "100"},
                                 {"eval_interval", "1000"},
                                 {"eval_iters", "10"},
                                 {"retriever_report_topk_accuracies", "1,5,10,20,100"},
                                 {"retriever_score_scaling", "true"},
                                 {"query_in_block_prob", "0.1"},
                                 {"lr", "0.0001"},
                                 {"lr_decay_style", "linear"},
                                 {"lr_warmup_fraction", "0.01"},
                                 {"weight_decay", "1e-2"},
                                 {"clip_grad", "1.0"},
                                 {"save_interval", "4000"},
                                 {"exit_interval", "8000"},
                                 {"fp16", "true"},
                                 {"log_format", "megatron"}};

StanfordWords sized_words(std::string_view micro_batch, std::string_view global_batch) {
  return {{"micro_batch_size", micro_batch}, {"global_batch_size", global_batch}};
}

}  // namespace

std::vector<FrontEndRow> stanford_front_ends() {
  return {
      {FrontEnd::kBert,
       "pretrain_bert",
       "Megatron's BERT of 345M parameters on one device",
       {"examples/pretrain_bert.sh"},
       {},
       joined_words({kBertWords, sized_words("4", "8"), {{"train_iters", "2000000"}}})},
      {FrontEnd::kBertDistributed,
       "pretrain_bert_distributed",
       "the same BERT on the devices of a machine or more",
       {"examples/pretrain_bert_distributed.sh"},
       {},
       joined_words({kBertWords, sized_words("4", "32"), {{"train_iters", "1000000"}}})},
      {FrontEnd::kBertWithMp,
       "pretrain_bert_distributed_with_mp",
       "the same BERT, two tensor-parallel ranks by two stages",
       {"examples/pretrain_bert_distributed_with_mp.sh"},
       {},
       joined_words({kBertWords, kTwoByTwo, sized_words("2", "16"), {{"train_iters", "1000000"}}})},
      {FrontEnd::kGpt,
       "pretrain_gpt",
       "Megatron's GPT of 345M parameters on one device",
       {"examples/pretrain_gpt.sh"},
       {},
       joined_words({kGptWords, sized_words("4", "8")})},
      {FrontEnd::kGptDistributed,
       "pretrain_gpt_distributed",
       "the same GPT on the devices of a machine or more",
       {"examples/pretrain_gpt_distributed.sh"},
       {},
       joined_words({kGptWords, sized_words("8", "64")})},
      {FrontEnd::kGptWithMp,
       "pretrain_gpt_distributed_with_mp",
       "the same GPT, two tensor-parallel ranks by two stages, with sequence parallelism",
       {"examples/pretrain_gpt_distributed_with_mp.sh"},
       {},
       joined_words({kGptWords, kTwoByTwo, sized_words("4", "16"), {{"sequence_parallel", "true"}}})},
      {FrontEnd::kGpt3,
       "pretrain_gpt3_175B",
       "GPT-3 of 175B parameters under Slurm, 128 machines of 8 devices",
       {"examples/pretrain_gpt3_175B.sh"},
       {},
       kGpt3Words},
      {FrontEnd::kT5,
       "pretrain_t5",
       "Megatron's T5 of 220M parameters on one device",
       {"examples/pretrain_t5.sh"},
       {},
       joined_words({kT5Words, {{"global_batch_size", "16"}}})},
      {FrontEnd::kT5Distributed,
       "pretrain_t5_distributed",
       "the same T5 on the devices of a machine or more",
       {"examples/pretrain_t5_distributed.sh"},
       {},
       joined_words({kT5Words, {{"global_batch_size", "128"}}})},
      {FrontEnd::kT5WithMp,
       "pretrain_t5_distributed_with_mp",
       "the same T5, two tensor-parallel ranks",
       {"examples/pretrain_t5_distributed_with_mp.sh"},
       {},
       joined_words({kT5Words, {{"global_batch_size", "128"}, {"tensor_model_parallel_size", "2"}}})},
      {FrontEnd::kIct,
       "pretrain_ict",
       "a retriever of 217M parameters, from a BERT",
       {"examples/pretrain_ict.sh"},
       {},
       kIctWords},
  };
}

}  // namespace megalith
