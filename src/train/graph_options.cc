// See graph_options.h.
#include "train/graph_options.h"

#include <fmt/format.h>

#include "config/option.h"
#include "train/config.h"

namespace megalith {

void GraphOptions::visit(OptionVisitor& v) {
  v.choice("cuda_graphs", cuda_graphs, {"none", "microbatch", "local", "transformer_engine"},
           "What a GPU gets as one graph, which the host launches at once: microbatch, its forward and backward. It "
           "speeds up small models, whose kernels take less time than their launches. Megatron-LM's local and "
           "transformer_engine are microbatch here.")
      .alias("cuda_graph_impl")
      .changes_numbers(false);
  v.field("cuda_graph_warmup_steps", cuda_graph_warmup_steps,
          "Steps without graphs before the first is captured; libraries try out their algorithms in them.")
      .unit("optimizer steps")
      .at_least(1)
      .changes_numbers(false);
}

std::vector<UserError> check_graph_options(const Config& config, std::vector<std::string>& notes) {
  const GraphOptions& graphs = config.runtime.graphs;
  if (!graphs.is_on()) return {};
  if (graphs.cuda_graphs == CudaGraphs::kLocal) notes.emplace_back("cuda_graphs local is microbatch here");
  if (graphs.cuda_graphs == CudaGraphs::kTransformerEngine) {
    notes.emplace_back("cuda_graphs transformer_engine is microbatch here");
  }
  struct Unfit {
    bool is_there;
    const char* what;
    const char* why;
  };
  const ParallelOptions& parallel = config.parallel;
  const Unfit all[] = {
      {parallel.tensor_model_parallel_size > 1, "tensor_model_parallel_size above 1",
       "its collectives would lie in the graph"},
      {parallel.context_parallel_size > 1, "context_parallel_size above 1", "its collectives would lie in the graph"},
      {parallel.pipeline_model_parallel_size > 1, "pipeline_model_parallel_size above 1",
       "a stage waits for others in the middle of its microbatches"},
      {parallel.expert_model_parallel_size > 1, "expert_model_parallel_size above 1",
       "the host sends as many rows as the router chose"},
      {config.data_parallel.use_torch_fsdp2, "use_torch_fsdp2", "parameters come and go while a microbatch runs"},
      {config.recompute.cpu_offloading_num_layers > 0, "cpu_offloading_num_layers",
       "activations leave on a stream of their own"},
      {config.fp8.is_on() && !config.fp8.is_microscaled(), "fp8_format", "the host decides which scales and copies of weights a microbatch uses"},
      {config.data.reset_attention_mask, "reset_attention_mask", "documents differ in every microbatch"},
      {config.task.task == TaskKind::kMaskedLm, "task masked_lm", "its rows differ in length"},
      {config.task.task == TaskKind::kBert, "task bert", "its rows differ in length"},
      {config.task.task == TaskKind::kT5, "task t5", "its rows differ in length"},
      {config.task.task == TaskKind::kIct, "task ict", "its rows differ in length"},
      {config.task.task == TaskKind::kClassification, "task classification", "its rows differ in length"},
      {config.model.balances_over_step(), "moe_router_load_balancing_type global_aux_loss",
       "the host counts the step's microbatches"},
      {config.model.has_experts() && config.runtime.kernels == Kernels::kReference, "kernels reference and experts",
       "their products read on the host where each expert's rows begin"},
      {config.profile.dump_pp_data, "dump_pp_data", "the host does not see when the parts of a graph run"},
  };
  std::vector<UserError> errors;
  for (const Unfit& one : all) {
    if (!one.is_there) continue;
    errors.emplace_back(fmt::format("cuda_graphs microbatch does not work with {}: {}", one.what, one.why),
                        fmt::format("leave cuda_graphs out, or train without {}", one.what));
  }
  return errors;
}

}  // namespace megalith
