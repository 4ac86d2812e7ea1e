// Biencoders' options (retrieval_head.h).
#pragma once

#include <cstdint>
#include <vector>

#include "config/option.h"

namespace megalith {

struct RetrievalOptions {
  bool biencoder_shared_query_context_model = false;
  int64_t biencoder_projection_dim = 0;  // 0: none
  bool retriever_score_scaling = false;
  std::vector<int64_t> retriever_report_topk_accuracies;

  void visit_retrieval(OptionVisitor& v);
};

}  // namespace megalith
