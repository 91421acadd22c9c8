#include "runner/fuzz_case.h"

namespace kvrope::regress {

void FuzzDraft::pin(const std::string& pointer, Json value) {
  set(pointer, std::move(value));
  pinned.insert(pointer);
}

FuzzCase make_fuzz_case(int64_t seed, int64_t number, int64_t most_tokens) {
  Draw draw(Random(seed, "fuzz " + std::to_string(number)));
  FuzzDraft draft = draw_valid_case(draw, most_tokens);
  if (draw.chance(0.5)) spoil_case(draft, draw);
  Json keys = {{"id", "fuzz-" + std::to_string(seed) + "-" + std::to_string(number)}};
  keys.update(draft.keys);
  return {keys, draft.pinned};
}

std::string file_with_case(const Json& keys) {
  Json file;
  file["schema_version"] = 1;
  file["cases"] = Json::array({keys});
  return file.dump();
}

}  // namespace kvrope::regress
