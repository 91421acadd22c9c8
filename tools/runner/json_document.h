// A JSON text whose objects keep the order of their keys, and the error every part of the case-file reader
// throws.
#pragma once

#include <nlohmann/json.hpp>

#include <stdexcept>
#include <string>

namespace kvrope::regress {

using Json = nlohmann::ordered_json;

// Something is wrong with a case file. `pointer` is a JSON pointer (RFC 6901) that ends in the offending key;
// it is empty where the whole document is meant.
struct FileError : std::runtime_error {
  FileError(std::string where, std::string complaint)
      : std::runtime_error(where.empty() ? complaint : where + ": " + complaint),
        pointer(std::move(where)),
        message(std::move(complaint)) {}

  std::string pointer, message;
};

// Throws FileError where the text is no JSON, or where an object names a key twice.
Json parse_json(const std::string& text);

// The value on one line, cut where it is long.
std::string shown(const Json& value);

// `key` as one part of a JSON pointer.
std::string pointer_part(const std::string& key);

}  // namespace kvrope::regress
