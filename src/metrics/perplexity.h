// exp of a mean log loss: the number of equally likely tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

namespace megalith {

// Losses of this name are mean squared errors.
inline constexpr std::string_view kSquaredErrorName = "mse loss";

// A classifier's loss has none either.
inline constexpr std::string_view kClassLossName = "class loss";

inline bool has_perplexity(std::string_view loss_name) {
  constexpr std::string_view kWithout[] = {kSquaredErrorName, kClassLossName,         "accuracy",
                                           "f1",              "matthews correlation", "pearson correlation"};
  return std::ranges::find(kWithout, loss_name) == std::end(kWithout);
}

// At most e^20; NaN stays.
inline double perplexity(double loss) { return std::exp(std::isnan(loss) ? loss : std::min(20.0, loss)); }

}  // namespace megalith
