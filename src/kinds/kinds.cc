// A new kind is a folder next to this file and a row here (docs/add_kind.md).
#include "kinds/kinds.h"

#include "kinds/classifier/classifier_kind.h"
#include "kinds/encoder/encoder_kind.h"
#include "kinds/flow/flow_kind.h"
#include "kinds/retrieval/retrieval_kind.h"
#include "kinds/seq2seq/seq2seq_kind.h"
#include "kinds/text/text_kind.h"

namespace megalith {

Kinds all_kinds() {
  static const TextKind kText;
  static const Seq2SeqKind kSeq2Seq;
  static const EncoderKind kEncoder;
  static const RetrievalKind kRetrieval;
  static const FlowKind kFlow;
  static const ClassifierKind kClassifier;
  static const Kind* const kAll[] = {&kText, &kSeq2Seq, &kEncoder, &kRetrieval, &kFlow, &kClassifier};
  return kAll;
}

}  // namespace megalith
