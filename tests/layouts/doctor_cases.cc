#include "layouts/doctor_cases.h"

#include "layouts/layout.h"

namespace megalith::test {
namespace {

using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Architectures large enough for every layout below; what they are at toy width is not said here.
const Words kLlama = {"--num_layers=4",
                      "--hidden_size=64",
                      "--ffn_hidden_size=128",
                      "--num_attention_heads=8",
                      "--group_query_attention",
                      "--num_query_groups=4",
                      "--vocab_size=1000",
                      "--max_position_embeddings=128",
                      "--seq_length=48",
                      "--position_embedding_type=rope",
                      "--normalization=RMSNorm",
                      "--swiglu",
                      "--disable_bias_linear",
                      "--attention_dropout=0",
                      "--hidden_dropout=0",
                      "--mock_data",
                      "--bf16"};
const Words kUntied = {"--untie_embeddings_and_output_weights"};
const Words kAdafactor = {"--optimizer=adafactor", "--adafactor_clip_threshold=0.5"};
const Words kMuon = {"--optimizer=muon", "--muon_nesterov", "--muon_scale_mode=unit_rms_norm"};
const Words kDropout = {"--attention_dropout=0.2", "--hidden_dropout=0.2"};
const Words kDocuments = {"--reset_attention_mask", "--reset_position_ids"};
const Words kExperts = kLlama + kUntied +
                       Words{"--num_experts=16", "--moe_router_topk=2", "--moe_aux_loss_coeff=0.02",
                             "--moe_z_loss_coeff=0.01", "--moe_token_dispatcher_type=alltoall"};
const Words kDeepseek = kLlama + kUntied +
                        Words{"--group_query_attention=false",
                              "--multi_latent_attention",
                              "--qk_layernorm",
                              "--q_lora_rank=24",
                              "--kv_lora_rank=16",
                              "--qk_head_dim=16",
                              "--qk_pos_emb_head_dim=8",
                              "--v_head_dim=16",
                              "--rotary_scaling_factor=4",
                              "--mscale_all_dim=1",
                              "--num_experts=16",
                              "--moe_layer_freq=([0]*1+[1]*3)",
                              "--moe_ffn_hidden_size=32",
                              "--num_shared_experts=1",
                              "--moe_router_topk=4",
                              "--moe_router_num_groups=4",
                              "--moe_router_group_topk=2",
                              "--moe_router_score_function=sigmoid",
                              "--moe_router_enable_expert_bias",
                              "--moe_router_topk_scaling_factor=2.5",
                              "--moe_router_load_balancing_type=seq_aux_loss",
                              "--moe_aux_loss_coeff=0.02",
                              "--mtp_num_layers=1"};
const Words kAdapters = {"--lora.enabled=true", "--lora.dim=4"};
const Words kGpt2 = {
    "--num_layers=4", "--hidden_size=64", "--num_attention_heads=8",      "--vocab_size=1000", "--seq_length=48",
    "--openai_gelu",  "--mock_data",      "--max_position_embeddings=128"};

const Words kBert = {"--model_type=bert",   "--num_layers=4",  "--hidden_size=64", "--num_attention_heads=8",
                     "--vocab_size=1000",   "--seq_length=48", "--mock_data",      "--max_position_embeddings=128",
                     "--micro_batch_size=4"};
const Words kT5 = {"--model_type=t5",
                   "--num_layers=4",
                   "--decoder_num_layers=2",
                   "--hidden_size=64",
                   "--num_attention_heads=8",
                   "--vocab_size=1000",
                   "--seq_length=48",
                   "--decoder_seq_length=24",
                   "--mock_data",
                   "--max_position_embeddings=128",
                   "--micro_batch_size=2"};
const Words kRelative = {"--position_embedding_type=relative", "--relu", "--normalization=RMSNorm",
                         "--disable_bias_linear"};
const Words kFlux = {"--model_type=diffusion_model", "--num_joint_layers=3", "--num_single_layers=3",
                     "--hidden_size=64",             "--num_attention_heads=4", "--axes_dim=4,4,8",
                     "--mock_data",                  "--micro_batch_size=2",    "--cfg_dropout_prob=0.3"};
const Words kEightExperts = {"--num_experts=8", "--moe_router_topk=2", "--moe_aux_loss_coeff=0.02"};
const Words kBiencoder = {"--model_type=biencoder",
                          "--num_layers=4",
                          "--hidden_size=64",
                          "--num_attention_heads=8",
                          "--vocab_size=1000",
                          "--seq_length=48",
                          "--max_position_embeddings=128",
                          "--micro_batch_size=4",
                          "--biencoder_projection_dim=16",
                          "--retriever_score_scaling",
                          "--retriever_report_topk_accuracies=1,5",
                          "--mock_data",
                          "--task=ict"};

const Words kClassifier = kLlama + Words{"--model_type=classifier", "--is_causal=true", "--num_labels=3",
                                         "--micro_batch_size=4"};
const Words kBertClassifier = {"--model_type=classifier", "--is_causal=false",       "--num_token_types=2",
                               "--num_layers=4",          "--hidden_size=64",        "--num_attention_heads=8",
                               "--vocab_size=1000",       "--seq_length=48",         "--mock_data",
                               "--norm_placement=post_ln", "--embedding_norm",       "--max_position_embeddings=128",
                               "--classifier_dropout=0.3", "--micro_batch_size=4"};

// "--tensor_model_parallel_size=2 …" for sizes above one.
Words layout(int world_size, int tp, int pp, int cp) {
  const auto size = [](const char* name, int value) { return std::string("--") + name + "=" + std::to_string(value); };
  return {size("dry_run_world_size", world_size), size("tensor_model_parallel_size", tp),
          size("pipeline_model_parallel_size", pp), size("context_parallel_size", cp)};
}

DoctorCase make_case(std::string name, const Words& arguments) {
  DoctorCase made{.name = std::move(name), .user = nullptr, .world = {}, .check = nullptr};
  CheckedConfig checked = resolve_for_check(
      {.arguments = arguments, .config_file = {}, .config_root = {}, .environment = {}}, /*launched_ranks=*/1);
  made.has_experts = checked.resolved->config.model.has_experts();
  made.rule = exchanging(checked.resolved->config.optimizer.optimizer);
  made.world = make_toy_world(checked.resolved->config.parallel, checked.world_size, /*most_ranks=*/16);
  made.user = std::move(checked.resolved);
  made.check = made.fresh_check();
  return made;
}

}  // namespace

std::unique_ptr<ParallelCheck> DoctorCase::fresh_check() const { return std::make_unique<ParallelCheck>(*user, world); }

std::vector<DoctorCase> doctor_cases() {
  std::vector<DoctorCase> cases;
  const auto add = [&](std::string name, const Words& arguments) {
    cases.push_back(make_case(std::move(name), arguments));
  };
  add("tp 2, qkv bias, documents", kLlama + kUntied + kDocuments + layout(2, 2, 1, 1) + Words{"--add_qkv_bias"});
  add("tp 2 dp 2, sequence parallel", kLlama + kUntied + layout(4, 2, 1, 1) + Words{"--sequence_parallel"});
  add("dp 2, tied, dropout",
      kLlama + kDropout + layout(2, 1, 1, 1) + Words{"--micro_batch_size=4", "--overlap_grad_reduce"});
  add("tp 4, sequence parallel, tied, dropout",
      kLlama + kDropout + layout(4, 4, 1, 1) + Words{"--sequence_parallel", "--micro_batch_size=2"});
  add("dp 2, distributed optimizer",
      kLlama + kUntied + layout(2, 1, 1, 1) +
          Words{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather"});
  add("dp 2, FSDP", kLlama + kUntied + layout(2, 1, 1, 1) + Words{"--use_torch_fsdp2"});
  add("pp 2, tied", kLlama + layout(2, 1, 2, 1));
  add("pp 2, zero bubble, documents",
      kLlama + kUntied + kDocuments + layout(2, 1, 2, 1) + Words{"--add_qkv_bias", "--pp_algorithm=zero-bubble"});
  add("cp 3, ring, documents, dropout", kLlama + kDocuments + kDropout + layout(3, 1, 1, 3));
  add("cp 2, all-gather, documents, dropout",
      kLlama + kDocuments + kDropout + layout(2, 1, 1, 2) + Words{"--cp_comm_type=all_gather", "--micro_batch_size=2"});
  add("cp 4 dp 2, all-to-all and ring, documents, dropout",
      kLlama + kDocuments + kDropout + layout(8, 1, 1, 4) +
          Words{"--cp_comm_type=a2a+p2p", "--hierarchical_context_parallel_sizes", "2", "2"});
  add("GPT-2, tp 2", kGpt2 + layout(2, 2, 1, 1));
  add("biencoder, dp 4, distributed optimizer",
      kBiencoder + kDropout + layout(4, 1, 1, 1) + Words{"--use_distributed_optimizer"});
  add("biencoder, dp 2, FSDP, one encoder", kBiencoder + layout(2, 1, 1, 1) +
                                                Words{"--use_torch_fsdp2", "--biencoder_shared_query_context_model"});
  add("adapters with lengths, tp 2, sequence parallel, dropout",
      kLlama + kAdapters + layout(2, 2, 1, 1) +
          Words{"--sequence_parallel", "--lora.use_dora=true", "--lora.dropout=0.3", "--lora.target_modules=all-linear"});
  add("adapters of experts, tp 2 dp 2 ep 2 etp 2",
      kExperts + kAdapters + layout(4, 2, 1, 1) +
          Words{"--expert_model_parallel_size=2", "--expert_tensor_parallel_size=2", "--micro_batch_size=4",
                "--lora.target_modules=linear_fc1,linear_fc2"});
  add("tp 2, Muon", kLlama + kUntied + kMuon + layout(2, 2, 1, 1));
  add("dp 3, FSDP, Muon", kLlama + kUntied + kMuon + layout(3, 1, 1, 1) + Words{"--use_torch_fsdp2"});
  add("tp 2, Adafactor", kLlama + kUntied + kAdafactor + layout(2, 2, 1, 1));
  add("dp 3, FSDP, Adafactor", kLlama + kUntied + kAdafactor + layout(3, 1, 1, 1) + Words{"--use_torch_fsdp2"});
  add("dp 3, FSDP, 8-bit Adam",
      kLlama + kUntied + layout(3, 1, 1, 1) + Words{"--use_torch_fsdp2", "--optimizer=adam8bit"});
  add("mixtral, dp 4 ep 2", kExperts + layout(4, 1, 1, 1) + Words{"--expert_model_parallel_size=2"});
  add("mixtral, dp 2 ep 2, distributed optimizer",
      kExperts + layout(2, 1, 1, 1) + Words{"--expert_model_parallel_size=2", "--use_distributed_optimizer"});
  add("deepseek, tp 2 dp 2 ep 2 etp 2, sequence parallel, dropout",
      kDeepseek + kDropout + layout(4, 2, 1, 1) +
          Words{"--expert_model_parallel_size=2", "--expert_tensor_parallel_size=2", "--sequence_parallel",
                "--micro_batch_size=4", "--moe_token_dispatcher_type=alltoall", "--moe_shared_expert_overlap"});
  add("deepseek, tp 2 ep 2 etp 1, all-gather, dropout",
      kDeepseek + kDropout + layout(2, 2, 1, 1) +
          Words{"--expert_model_parallel_size=2", "--expert_tensor_parallel_size=1", "--micro_batch_size=4"});
  add("deepseek, cp 2 ep 2, all-gather, with a capacity",
      kDeepseek + layout(2, 1, 1, 2) +
          Words{"--expert_model_parallel_size=2", "--moe_expert_capacity_factor=0.75", "--micro_batch_size=4"});
  add("deepseek, dp 4 ep 2, FSDP",
      kDeepseek + layout(4, 1, 1, 1) + Words{"--expert_model_parallel_size=2", "--use_torch_fsdp2"});
  add("mixtral, dp 2 ep 2 pp 2, zero bubble, FSDP",
      kExperts + layout(4, 1, 2, 1) +
          Words{"--expert_model_parallel_size=2", "--use_torch_fsdp2", "--pp_algorithm=zero-bubble"});
  add("BERT, tp 2, sequence parallel", kBert + layout(2, 2, 1, 1) + Words{"--sequence_parallel"});
  add("BERT, cp 2, distributed optimizer", kBert + layout(4, 1, 1, 2) + Words{"--use_distributed_optimizer"});
  add("BERT with experts, dp 2 ep 2",
      kBert + kEightExperts + layout(2, 1, 1, 1) + Words{"--expert_model_parallel_size=2"});
  add("classifier, tp 2 pp 2, sequence parallel", kClassifier + layout(4, 2, 2, 1) + Words{"--sequence_parallel"});
  add("classifier, cp 2 dp 2, distributed optimizer, regression",
      kClassifier + layout(4, 1, 1, 2) + Words{"--use_distributed_optimizer", "--num_labels=1"});
  add("classifier, dp 2, FSDP", kClassifier + layout(2, 1, 1, 1) + Words{"--use_torch_fsdp2"});
  add("classifier with experts, dp 2 ep 2",
      kClassifier + kEightExperts + layout(2, 1, 1, 1) + Words{"--expert_model_parallel_size=2"});
  add("classifier on a BERT, tp 2 cp 2, sequence parallel, dropout",
      kBertClassifier + kDropout + layout(4, 2, 1, 2) + Words{"--sequence_parallel"});
  add("T5, tp 2 pp 2, relative positions", kT5 + kRelative + layout(4, 2, 2, 1));
  add("T5, pp 3, the encoder on 2", kT5 + layout(3, 1, 3, 1) + Words{"--pipeline_model_parallel_split_rank=2"});
  add("T5, tp 2, sequence parallel", kT5 + layout(2, 2, 1, 1) + Words{"--sequence_parallel"});
  add("T5 with experts, dp 2 ep 2 pp 2, distributed optimizer",
      kT5 + kEightExperts + layout(4, 1, 2, 1) +
          Words{"--expert_model_parallel_size=2", "--use_distributed_optimizer"});
  add("FLUX, tp 2 pp 2", kFlux + layout(4, 2, 2, 1));
  add("FLUX, tp 2, sequence parallel", kFlux + layout(2, 2, 1, 1) + Words{"--sequence_parallel"});
  add("FLUX, dp 2, FSDP2", kFlux + layout(2, 1, 1, 1) + Words{"--use_torch_fsdp2"});
  return cases;
}

}  // namespace megalith::test
