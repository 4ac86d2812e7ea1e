// Lets zero-bubble schedules send the input gradient first, and compute weight gradients in the pipeline's bubbles. One
// object per rank, used by one thread. Source: arXiv:2401.10241.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megalith {

class DeferredGradients {
 public:
  using Products = std::vector<std::function<void()>>;  // in backward's order; each runs once

  bool is_deferring() const { return collected_ != nullptr; }
  void defer(std::function<void()> product) {
    MEGALITH_CHECK(is_deferring(), "a weight gradient is deferred, but nobody collects");
    collected_->push_back(std::move(product));
  }

  // Until end(), deferred work goes to `products`.
  void begin(Products& products) {
    MEGALITH_CHECK(!is_deferring(), "weight gradients are being collected already");
    collected_ = &products;
  }
  void end() { collected_ = nullptr; }

  // Frees each product before the next runs.
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
