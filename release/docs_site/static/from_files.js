// Opened from files, a browser may not read the pages that the search found, so that no excerpt of them can be shown.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
