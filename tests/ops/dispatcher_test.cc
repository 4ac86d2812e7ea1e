// Every operator of the namespace is registered for all four keys, and halves of a differentiable one refuse backward.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <string>
#include <vector>

#include "ops/rms_norm/rms_norm.h"
#include "support/tensor_near.h"

namespace megalith::ops {
namespace {

std::vector<c10::OperatorHandle> all_operators() {
  std::vector<c10::OperatorHandle> operators;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.getNamespace() == "megalith") operators.push_back(*c10::Dispatcher::singleton().findOp(name));
  }
  return operators;
}

TEST(Dispatcher, EveryOperatorHasReferenceCpuMetaAndAutograd) {
  const auto operators = all_operators();
  ASSERT_GE(operators.size(), 10u) << "the linker dropped the registrations";
  for (const c10::OperatorHandle& op : operators) {
    const std::string name = op.operator_name().name;
    ASSERT_TRUE(op.hasSchema()) << name << " has an implementation but no schema";
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) << name << ": no reference";
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) << name << ": no CPU kernel";
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) << name << ": no Meta kernel";
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::Autograd)) << name << ": no Autograd registration";
    EXPECT_FALSE(op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
        << name << ": an implicit composite would shadow its gradient";
  }
}

TEST(Dispatcher, SchemasUseTypesThatPythonCanPass) {
  for (const c10::OperatorHandle& op : all_operators()) {
    for (const c10::Argument& argument : op.schema().arguments()) {
      const std::string type = argument.type()->str();
      const bool is_simple = type == "Tensor" || type == "Tensor?" || type == "Tensor[]" || type == "int" ||
                             type == "float" || type == "bool" || type == "int[]" || type == "float[]";
      EXPECT_TRUE(is_simple) << op.operator_name().name << "(" << argument.name() << ": " << type << ")";
    }
  }
}

TEST(Dispatcher, InPlaceOperatorsSayWhatTheyWrite) {
  for (const c10::OperatorHandle& op : all_operators()) {
    EXPECT_EQ(op.schema().name().ends_with("_"), op.schema().is_mutable()) << op.operator_name().name;
  }
}

TEST(Dispatcher, BackwardThroughAHalfNamesTheOperator) {
  const at::Tensor x = at::randn({2, 3}).requires_grad_(true), weight = at::ones({3});
  const at::Tensor y = std::get<0>(rms_norm_forward(x, weight, 1e-5));
  try {
    y.sum().backward();
    FAIL() << "the gradient was cut silently";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("rms_norm_forward"), std::string::npos) << error.what();
  }
}

TEST(Dispatcher, MetaTensorsGiveShapesWithoutData) {
  const at::Tensor x = at::empty({3, 5}, at::device(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor weight = at::empty({5}, x.options());
  const auto [y, inv_rms] = rms_norm_forward(x, weight, 1e-5);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(inv_rms.sizes(), at::IntArrayRef({3}));
  EXPECT_EQ(inv_rms.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace megalith::ops
