// Multimodal RoPE: pos is (3, T), a position in time, height and width for each token, and each of the R/2
// frequencies turns by the position of one of these axes (Qwen2-VL, arXiv:2409.12191: sections one after the
// other; Qwen3-VL: interleaved, t h w t h w ... while height and width last).
#pragma once

#include "dtype.h"

namespace kvrope {

constexpr int kNumAxes = 3;

struct MropeSection {  // frequencies of height and width; time has the others
  uint16_t height, width;
  bool is_interleaved;
};

KVROPE_HOST_DEVICE int axis_of_frequency(const MropeSection& section, int num_frequencies, int i) {
  if (section.is_interleaved) {
    const int axis = i % kNumAxes;
    const int size = axis == 1 ? section.height : axis == 2 ? section.width : 0;
    return i < kNumAxes * size ? axis : 0;
  }
  const int first_of_width = num_frequencies - section.width;
  return i >= first_of_width ? 2 : i >= first_of_width - section.height ? 1 : 0;
}

}  // namespace kvrope
