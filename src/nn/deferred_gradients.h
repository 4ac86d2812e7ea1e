// Weight gradients that are asked to wait: zero-bubble schedules compute the gradient of the inputs first, send it, and
// run the products for the weights when the pipeline would be idle. Source: Qi et al. 2023, arXiv:2401.10241.
//
// One object a rank's model, reached through LayerContext::deferred_gradients; a linear layer asks in its backward pass
// whether to compute or to defer. Backward and the products run on one thread of the rank.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megalith {

class DeferredGradients {
 public:
  using Products = std::vector<std::function<void()>>;  // in the order of backward; each runs once

  bool is_deferring() const { return collected_ != nullptr; }
  void defer(std::function<void()> product) {
    MEGALITH_CHECK(is_deferring(), "a weight gradient is deferred, but nobody collects");
    collected_->push_back(std::move(product));
  }

  // Between begin and end what is deferred goes to `products`, which the caller runs later, in order.
  void begin(Products& products) {
    MEGALITH_CHECK(!is_deferring(), "weight gradients are being collected already");
    collected_ = &products;
  }
  void end() { collected_ = nullptr; }

  // Runs and frees the products one after another, so that what each keeps alive is gone before the next runs.
  static void run(Products& products) {
    Products taken = std::move(products);
    products.clear();
    for (std::function<void()>& product : taken) {
      product();
      product = nullptr;
    }
  }

 private:
  Products* collected_ = nullptr;
};

}  // namespace megalith
