// Declarations of ATen's operators that the GPU's code calls and that LibTorch may change: those with an underscore
// before their names, and those that call a vendor's library. If one changes, review it, then update its text here.
// Needs no GPU; the bundle for GPUs runs it with LibTorch's build for them.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace megalith::ops::vendor_schemas_test {
namespace {

// Later arguments are new in 2.13, and have defaults.
constexpr const char* kFlashForward =
    "aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, "
    "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, "
    "SymInt? window_size_left=None, SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None";
constexpr const char* kFlashResults =
    ") -> (Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)";

struct Declaration {
  const char *name, *overload;
  std::vector<std::string> texts;  // any of them: LibTorch's versions differ
};

const std::vector<Declaration>& declarations() {
  static const auto* const all = new std::vector<Declaration>{
      {"aten::_flash_attention_forward",
       "",
       {std::string(kFlashForward) + kFlashResults,
        std::string(kFlashForward) + ", Tensor? block_table=None, int? num_splits=None" + kFlashResults}},
      {"aten::_flash_attention_backward",
       "",
       {"aten::_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor "
        "logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, "
        "Tensor rng_state, Tensor unused, *, float? scale=None, SymInt? window_size_left=None, SymInt? "
        "window_size_right=None) -> (Tensor, Tensor, Tensor)"}},
      {"aten::_cudnn_attention_forward",
       "",
       {"aten::_cudnn_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, Tensor? cum_seq_q, "
        "Tensor? cum_seq_k, SymInt max_q, SymInt max_k, bool compute_log_sumexp, float dropout_p=0., bool "
        "is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, "
        "Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor philox_offset, "
        "Tensor debug_attn_mask)"}},
      {"aten::_cudnn_attention_backward",
       "",
       {"aten::_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor "
        "logsumexp, Tensor philox_seed, Tensor philox_offset, Tensor attn_bias, Tensor cum_seq_q, Tensor cum_seq_k, "
        "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, *, float? scale=None) -> (Tensor, Tensor, "
        "Tensor)"}},
      {"aten::_grouped_mm",
       "",
       {"aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) "
        "-> Tensor"}},
      {"aten::_scaled_mm",
       "",
       {"aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? "
        "scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor"}},
      {"aten::addmm",
       "dtype_out",
       {"aten::addmm.dtype_out(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar "
        "alpha=1, Tensor(a!) out) -> Tensor(a!)"}},
      {"aten::addmm",
       "out",
       {"aten::addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, Tensor(a!) out) -> "
        "Tensor(a!)"}},
      {"aten::addmm",
       "",
       {"aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"}},
      {"aten::mm", "", {"aten::mm(Tensor self, Tensor mat2) -> Tensor"}},
  };
  return *all;
}

TEST(VendorSchemas, AreThoseThatTheCodeWasWrittenFor) {
  for (const Declaration& declaration : declarations()) {
    const auto op = c10::Dispatcher::singleton().findSchema({declaration.name, declaration.overload});
    ASSERT_TRUE(op.has_value()) << declaration.name << " is not in this LibTorch";
    std::ostringstream text;
    text << op->schema();
    EXPECT_TRUE(std::ranges::find(declaration.texts, text.str()) != declaration.texts.end())
        << "LibTorch declares\n  " << text.str() << "\nwhere the code was written for\n  " << declaration.texts.back();
  }
}

}  // namespace
}  // namespace megalith::ops::vendor_schemas_test
