#include "nn/retrieval_options.h"

#include "nn/option_rules.h"

namespace megalith {

void RetrievalOptions::visit_retrieval(OptionVisitor& v) {
  constexpr double kMostNeighbours = INT32_MAX;
  v.group("Retrieval", kOfModel.of(kBiencoders));
  v.field("biencoder_shared_query_context_model", biencoder_shared_query_context_model,
          "With model_type biencoder: one encoder reads questions and texts, instead of one each.");
  v.field("biencoder_projection_dim", biencoder_projection_dim,
          "With model_type biencoder: a linear layer behind each encoder gives vectors of so many numbers. 0: none; "
          "they are as wide as hidden_size.")
      .within(0, kMostWidth)
      .alias("ict_head_size");
  v.field("retriever_score_scaling", retriever_score_scaling,
          "With model_type biencoder: divide the scores by the square root of hidden_size.")
      .changes_weights(false);
  v.field("retriever_report_topk_accuracies", retriever_report_topk_accuracies,
          "With model_type biencoder: for each k of these, log in what share of the rows the right text is among the k "
          "best of its set, in percent.")
      .within(1, kMostNeighbours)
      .changes_weights(false)
      .in_toy(InToy::kDefault);
}

}  // namespace megalith
