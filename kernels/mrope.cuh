// Multimodal RoPE: pos is (3, T), a position in time, height and width for each token, and each of the R/2
// frequencies turns by the position on one of these axes (Qwen2-VL, arXiv:2409.12191: sections one after the
// other; Qwen3-VL: interleaved, t h w t h w ... while height and width last).
#pragma once

#include "dtype.h"

namespace kvrope {

constexpr int kNumAxes = 3;

// The axis of each frequency, worked out on the host: both orders look alike to a kernel. All zero: one axis.
struct FrequencyAxes {
  static constexpr int kBits = 2, kPerWord = 32 / kBits, kMaxFrequencies = 256;
  uint32_t words[kMaxFrequencies / kPerWord];

  // Those of `i` and the following frequencies of its word, kBits each, from the lowest bits on.
  KVROPE_HOST_DEVICE uint32_t from(unsigned i) const { return words[i / kPerWord] >> kBits * (i % kPerWord); }
  KVROPE_HOST_DEVICE int of(int i) const {
    return static_cast<int>(from(static_cast<unsigned>(i)) % (1u << kBits));
  }
};

struct MropeSection {  // frequencies of each axis, together R/2
  int64_t size[kNumAxes];
  bool is_interleaved;

  int axis_of(int i) const {
    if (is_interleaved) return i < kNumAxes * size[i % kNumAxes] ? i % kNumAxes : 0;
    return i < size[0] ? 0 : i < size[0] + size[1] ? 1 : 2;
  }
};

inline FrequencyAxes frequency_axes(const MropeSection& section) {
  FrequencyAxes axes{};
  const int count = static_cast<int>(section.size[0] + section.size[1] + section.size[2]);
  for (int i = 0; i < count; ++i) {
    const auto axis = static_cast<uint32_t>(section.axis_of(i));
    axes.words[i / FrequencyAxes::kPerWord] |= axis << FrequencyAxes::kBits * (i % FrequencyAxes::kPerWord);
  }
  return axes;
}

}  // namespace kvrope
