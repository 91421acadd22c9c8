#include "runner/json_document.h"

#include <set>
#include <vector>

namespace kvrope::regress {
namespace {

// Follows the parser through the document to find keys that are given twice, which the parser itself would
// drop.
class DuplicateKeys {
 public:
  bool operator()(int, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::object_start:
        levels_.push_back({true, 0, "", {}});
        break;
      case Event::array_start:
        levels_.push_back({false, 0, "", {}});
        break;
      case Event::key:
        see_key(parsed.get<std::string>());
        break;
      case Event::object_end:
      case Event::array_end:
        levels_.pop_back();
        pass_element();
        break;
      case Event::value:
        pass_element();
        break;
    }
    return true;
  }

 private:
  struct Level {
    bool is_object;
    size_t index;
    std::string key;
    std::set<std::string> keys;
  };

  void see_key(const std::string& key) {
    levels_.back().key = key;
    if (!levels_.back().keys.insert(key).second) throw FileError(pointer(), "key is given twice");
  }

  void pass_element() {
    if (!levels_.empty() && !levels_.back().is_object) ++levels_.back().index;
  }

  std::string pointer() const {
    std::string text;
    for (const Level& level : levels_) {
      text += "/" + (level.is_object ? pointer_part(level.key) : std::to_string(level.index));
    }
    return text;
  }

  std::vector<Level> levels_;
};

}  // namespace

Json parse_json(const std::string& text) {
  try {
    DuplicateKeys duplicates;
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      return duplicates(depth, event, parsed);
    });
  } catch (const Json::exception& error) {
    std::string what = error.what();
    size_t start = what.find("] ");  // after the library's error number
    throw FileError("", "no valid JSON: " + (start == std::string::npos ? what : what.substr(start + 2)));
  }
}

std::string shown(const Json& value) {
  constexpr size_t kLongest = 80;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

std::string pointer_part(const std::string& key) {
  std::string part;
  for (char letter : key) {
    if (letter == '~') {
      part += "~0";
    } else if (letter == '/') {
      part += "~1";
    } else {
      part += letter;
    }
  }
  return part;
}

}  // namespace kvrope::regress
