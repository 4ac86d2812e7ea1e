#include "planner/work_trace.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace megalith {

struct WorkRecorder::State {
  WorkTrace& trace;
  bool has_eight_bit_recipe;
  at::CallbackHandle callback{};
  State* outer = nullptr;
  int depth = 0;
  int64_t next_id = 0;
  TracedWork* own = nullptr;  // the operator of ops/ in which an operator runs
};

namespace {

// Observers are plain functions, without state.
thread_local WorkRecorder::State* newest_recorder = nullptr;

constexpr std::string_view kOwn = "megalith::";

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }
double side(const at::Tensor& tensor, int64_t dim) { return static_cast<double>(tensor.size(dim)); }

// How an operator's inputs say its product: rows of matrices (t, i) and (o, i), whose names are in ops/linear/linear.h.
enum class ProductForm {
  kNone,
  kForward,  // x (t, h), w (o, h)
  kDgrad,    // dy (t, o), w (o, h)
  kWgrad,    // dw (o, h), dy (t, o), x (t, h)
  kHead,     // all three at once: x (t, h), w (v, h)
};
struct OperatorForm {
  std::string_view name;
  ProductForm product = ProductForm::kNone;
  bool is_weight_gradient = false;
  int looked_up = -1;  // the input of which only some rows are read or written
};
constexpr OperatorForm kForms[] = {
    {"linear_forward", ProductForm::kForward},
    {"linear_dgrad", ProductForm::kDgrad},
    {"linear_wgrad_", ProductForm::kWgrad, true},
    {"grouped_linear_forward", ProductForm::kForward},
    {"grouped_linear_dgrad", ProductForm::kDgrad},
    {"grouped_linear_wgrad_", ProductForm::kWgrad, true},
    {"linear_cross_entropy", ProductForm::kHead},
    {"bias_grad_", ProductForm::kNone, true},
    {"embedding_forward", ProductForm::kNone, false, 1},
    {"embedding_wgrad_", ProductForm::kNone, true, 0},
};

struct Context : at::ObserverContext {
  bool is_node = false;  // autograd's wrapper of a node, whose operators are those to see
  bool is_outermost = false;
  bool is_counted = false;
  TracedWork work;
  std::vector<const c10::StorageImpl*> inputs;
};

// w may be (e, o, h): a token meets one expert.
void set_product(const OperatorForm& form, const std::vector<at::Tensor>& in, TracedWork& work) {
  const auto at_least = [&](size_t count) {
    MEGALITH_CHECK(in.size() >= count, "{} shows {} tensors", work.name, in.size());
  };
  at_least(form.product == ProductForm::kWgrad ? 3 : 2);
  work.kind = WorkKind::kProduct;
  if (form.product == ProductForm::kWgrad) {
    work.m = side(in[1], -1), work.n = side(in[2], -1), work.k = side(in[1], 0);
    // Experts share the rows.
    if (in[0].dim() == 3) work.count = side(in[0], 0), work.k /= work.count;
    return;
  }
  const bool is_dgrad = form.product == ProductForm::kDgrad;
  work.m = side(in[0], 0), work.k = side(in[0], -1);
  work.n = is_dgrad ? side(in[1], -1) : side(in[1], -2);
  if (in[1].dim() == 3) work.count = side(in[1], 0), work.m /= work.count;
  if (form.product == ProductForm::kHead) work.count = 3;
}

double product_flops(const TracedWork& work) { return 2 * work.m * work.n * work.k * work.count; }

void set_attention(const std::vector<at::Tensor>& in, bool is_backward, TracedWork& work) {
  // (b, s, heads, channels)
  const at::Tensor &q = in[is_backward ? 1 : 0], &k = in[is_backward ? 2 : 1], &v = in[is_backward ? 3 : 2];
  const double pairs = side(q, 0) * side(q, 1) * side(k, 1) * side(q, 2);
  const double d = side(q, 3), dv = side(v, 3);
  work.kind = WorkKind::kAttention;
  work.is_backward = is_backward;
  work.k = d;
  work.flops = 2 * pairs * (is_backward ? 3 * d + 2 * dv : d + dv);
}

// Views and allocations cost nothing.
bool is_free(std::string_view name) {
  constexpr std::array<std::string_view, 6> kFree = {"aten::empty", "aten::detach", "aten::set_",
                                                     "aten::resize_", "aten::new_empty", "aten::_"};
  return std::ranges::any_of(kFree, [&](std::string_view free) { return name.starts_with(free); });
}

void start_own(std::string_view name, const std::vector<at::Tensor>& in, Context& context) {
  TracedWork& work = context.work;
  work.name = name;
  const auto* form = std::ranges::find(kForms, name, &OperatorForm::name);
  if (form != std::end(kForms)) {
    work.is_weight_gradient = form->is_weight_gradient;
    if (form->looked_up >= 0) {
      const at::Tensor& table = in.at(static_cast<size_t>(form->looked_up));
      const int64_t rows = in[form->looked_up == 0 ? 1 : 0].numel();
      const int64_t row_bytes = table.size(-1) * static_cast<int64_t>(table.element_size());
      work.bytes += static_cast<double>(rows * row_bytes) - bytes_of(table);
    }
    if (form->product != ProductForm::kNone) {
      set_product(*form, in, work);
      work.flops = product_flops(work);
      const at::ScalarType dtype = in[form->product == ProductForm::kWgrad ? 1 : 0].scalar_type();
      const bool is_widened = dtype == at::kFloat || at::isFloat8Type(dtype);
      const bool is_of_recipe = newest_recorder->has_eight_bit_recipe && form->product != ProductForm::kHead;
      work.is_in_eight_bits = is_of_recipe && is_widened;
      work.is_wide = dtype == at::kFloat && !work.is_in_eight_bits;
    }
  }
  if (name == "attention_forward") set_attention(in, /*is_backward=*/false, work);
  if (name == "attention_backward") set_attention(in, /*is_backward=*/true, work);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  auto context = std::make_unique<Context>();
  const std::string_view name = function.name();
  context->is_node = name.starts_with("autograd::engine::");
  if (context->is_node) return context;
  context->is_outermost = newest_recorder->depth++ == 0;
  if (!context->is_outermost) return context;
  std::vector<at::Tensor> in;
  for (const c10::IValue& value : function.inputs()) {
    for_each_tensor(value, [&](const at::Tensor& tensor) { in.push_back(tensor); });
  }
  for (const at::Tensor& tensor : in) {
    context->work.bytes += bytes_of(tensor);
    if (tensor.has_storage()) context->inputs.push_back(tensor.storage().unsafeGetStorageImpl());
  }
  if (name.starts_with(kOwn)) {
    start_own(name.substr(kOwn.size()), in, *context);
    context->is_counted = true;
    newest_recorder->own = &context->work;
  } else {
    context->work.name = name;
    context->is_counted = !newest_recorder->has_eight_bit_recipe && !is_free(name);
  }
  return context;
}

// An operator writes what is new, or what it changes.
void on_end(const at::RecordFunction& function, at::ObserverContext* raw) {
  auto& context = *static_cast<Context*>(raw);
  if (context.is_node) return;
  --newest_recorder->depth;
  if (!context.is_outermost && newest_recorder->own != nullptr &&
      std::string_view(function.name()).starts_with("aten::empty")) {
    for (const c10::IValue& value : function.outputs()) {
      for_each_tensor(value, [&](const at::Tensor& tensor) { newest_recorder->own->bytes += bytes_of(tensor); });
    }
  }
  if (!context.is_outermost) return;
  const bool is_own = std::exchange(newest_recorder->own, nullptr) != nullptr;
  if (!context.is_counted) return;
  const bool is_in_place = context.work.name.ends_with('_') || context.work.name.ends_with("_out");
  bool writes = is_in_place;
  for (const c10::IValue& value : function.outputs()) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      const auto* storage = tensor.storage().unsafeGetStorageImpl();
      const bool is_new = std::ranges::find(context.inputs, storage) == context.inputs.end();
      if (is_new) writes = true;
      if (is_new || is_in_place) context.work.bytes += bytes_of(tensor);
    });
  }
  if (!is_own && !writes) return;  // a view
  newest_recorder->trace.push_back(std::move(context.work));
}

class TracedGroup : public Group {
 public:
  using Group::Group;

 protected:
  State start_all_reduce(const at::Tensor&, ReduceOp, const Record& record) override { return traced(record); }
  State start_all_gather(const at::Tensor&, const at::Tensor&, const Record& record) override { return traced(record); }
  State start_reduce_scatter(const at::Tensor&, const at::Tensor&, ReduceOp, const Record& record) override {
    return traced(record);
  }
  State start_all_to_all(const at::Tensor&, const at::Tensor&, const std::vector<int64_t>&,
                         const std::vector<int64_t>&, const Record& record) override {
    return traced(record);
  }
  State start_broadcast(const at::Tensor&, int, const Record& record) override { return traced(record); }
  State start_send_receive(const std::vector<Transfer>&, const Record& record) override { return traced(record); }
  State start_barrier(const Record&) override { return nullptr; }

 private:
  struct Wait : WorkState {
    int64_t id;
    bool is_done_ = false;
    explicit Wait(int64_t of) : id(of) {}
    void wait() override {
      if (newest_recorder != nullptr && !std::exchange(is_done_, true)) {
        newest_recorder->trace.push_back({.kind = WorkKind::kWait, .name = "wait", .id = id});
      }
    }
    bool is_done() override { return is_done_; }
  };

  State traced(const Record& record) const {
    if (newest_recorder == nullptr) return nullptr;
    const int64_t id = newest_recorder->next_id++;
    newest_recorder->trace.push_back({.kind = WorkKind::kCollective,
                                      .name = record->label,
                                      .bytes = static_cast<double>(record->bytes),
                                      .collective = record->kind,
                                      .axis = record->axis,
                                      .ranks = std::make_shared<const std::vector<int>>(ranks()),
                                      .id = id});
    return std::make_shared<Wait>(id);
  }
};

}  // namespace

WorkRecorder::WorkRecorder(WorkTrace& trace, bool has_eight_bit_recipe)
    : state_(new State{.trace = trace, .has_eight_bit_recipe = has_eight_bit_recipe}) {
  state_->outer = std::exchange(newest_recorder, state_.get());
  state_->callback = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                                    .needsInputs(true)
                                                    .needsOutputs(true)
                                                    .scopes({at::RecordScope::FUNCTION}));
}

WorkRecorder::~WorkRecorder() {
  at::removeCallback(state_->callback);
  newest_recorder = state_->outer;
}

GroupFactory traced_group_factory(int rank) {
  return [rank](std::vector<int> ranks, const std::string& axis) -> std::shared_ptr<Group> {
    const auto own = std::ranges::find(ranks, rank);
    MEGALITH_CHECK(own != ranks.end(), "rank {} is not in its group {}", rank, axis);
    const int position = static_cast<int>(own - ranks.begin());
    return std::make_shared<TracedGroup>(std::move(ranks), position, axis);
  };
}

}  // namespace megalith
