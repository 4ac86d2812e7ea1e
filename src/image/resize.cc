#include "image/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace megalith {
namespace {

constexpr int kWeightBits = 22;  // sums stay within 32 bits

double sinc(double x) { return x == 0 ? 1 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x); }

struct Kernel {
  double support;
  double (*weight)(double x);
};

Kernel kernel_of(ResizeFilter filter) {
  switch (filter) {
    case ResizeFilter::kLanczos:
      return {3, [](double x) { return std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0.0; }};
    case ResizeFilter::kBicubic:  // Keys with a = -0.5
      return {2, [](double x) {
                constexpr double a = -0.5;
                x = std::abs(x);
                if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
                return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
              }};
    case ResizeFilter::kBilinear:
      return {1, [](double x) { return std::max(0.0, 1 - std::abs(x)); }};
  }
  fail_internal(__FILE__, __LINE__, "filter", "no such filter");
}

struct Window {
  int64_t first = 0;
  std::vector<int32_t> weights;  // in 2^-22
};

std::vector<Window> windows_of(int64_t in, int64_t out, const Kernel& kernel) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0), support = kernel.support * stretch;
  std::vector<Window> windows(static_cast<size_t>(out));
  std::vector<double> weights;
  for (int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
    const int64_t last = std::min(in, static_cast<int64_t>(centre + support + 0.5));
    weights.clear();
    double sum = 0;
    for (int64_t x = first; x < last; ++x) {
      weights.push_back(kernel.weight((static_cast<double>(x) - centre + 0.5) * (1 / stretch)));
      sum += weights.back();
    }
    Window& window = windows[static_cast<size_t>(i)];
    window.first = first;
    for (double weight : weights) {
      if (sum != 0) weight /= sum;
      window.weights.push_back(static_cast<int32_t>(std::round(weight * (1 << kWeightBits))));  // halves away from 0
    }
  }
  return windows;
}

uint8_t to_byte(int64_t sum) { return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kWeightBits, 0, 255)); }

Picture resized_rows(const Picture& picture, int64_t width, const Kernel& kernel) {
  const std::vector<Window> windows = windows_of(picture.width, width, kernel);
  Picture out{width, picture.height, std::vector<uint8_t>(static_cast<size_t>(width * picture.height * 3))};
  for (int64_t y = 0; y < out.height; ++y) {
    const uint8_t* from = picture.row(y);
    uint8_t* to = out.row(y);
    for (const Window& window : windows) {
      int64_t sums[3] = {1 << (kWeightBits - 1), 1 << (kWeightBits - 1), 1 << (kWeightBits - 1)};
      const uint8_t* pixel = from + 3 * window.first;
      for (const int32_t weight : window.weights) {
        for (int c = 0; c < 3; ++c) sums[c] += static_cast<int64_t>(*pixel++) * weight;
      }
      for (const int64_t sum : sums) *to++ = to_byte(sum);
    }
  }
  return out;
}

Picture resized_columns(const Picture& picture, int64_t height, const Kernel& kernel) {
  const std::vector<Window> windows = windows_of(picture.height, height, kernel);
  Picture out{picture.width, height, std::vector<uint8_t>(static_cast<size_t>(picture.width * height * 3))};
  std::vector<int64_t> sums(static_cast<size_t>(picture.width * 3));
  for (int64_t y = 0; y < height; ++y) {
    const Window& window = windows[static_cast<size_t>(y)];
    std::fill(sums.begin(), sums.end(), int64_t{1} << (kWeightBits - 1));
    for (size_t k = 0; k < window.weights.size(); ++k) {
      const uint8_t* from = picture.row(window.first + static_cast<int64_t>(k));
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<int64_t>(from[i]) * window.weights[k];
    }
    std::transform(sums.begin(), sums.end(), out.row(y), to_byte);
  }
  return out;
}

}  // namespace

Picture resize(const Picture& picture, int64_t width, int64_t height, ResizeFilter filter) {
  MEGALITH_CHECK(width > 0 && height > 0, "a picture of {} × {}", width, height);
  const Kernel kernel = kernel_of(filter);
  Picture out = picture.width == width ? picture : resized_rows(picture, width, kernel);
  return out.height == height ? out : resized_columns(out, height, kernel);
}

Picture crop(const Picture& picture, int64_t x, int64_t y, int64_t width, int64_t height) {
  MEGALITH_CHECK(x >= 0 && y >= 0 && width > 0 && height > 0 && x + width <= picture.width &&
                     y + height <= picture.height,
                 "{} × {} at ({}, {}) of a picture of {} × {}", width, height, x, y, picture.width, picture.height);
  Picture out{width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3))};
  for (int64_t row = 0; row < height; ++row) std::copy_n(picture.row(y + row) + 3 * x, width * 3, out.row(row));
  return out;
}

Picture resize_and_crop(const Picture& picture, int64_t size, const CropPlace& place, ResizeFilter filter) {
  const int64_t w = picture.width, h = picture.height, shorter = std::min(w, h);
  const Picture resized = resize(picture, w == shorter ? size : w * size / shorter,
                                 h == shorter ? size : h * size / shorter, filter);
  const auto begin = [&](int64_t length) {
    const int64_t free = length - size;
    if (place.is_centred) return free / 2;
    return std::min(free, static_cast<int64_t>(place.along * static_cast<double>(free + 1)));
  };
  return crop(resized, begin(resized.width), begin(resized.height), size, size);
}

}  // namespace megalith
