// Sorts a table by the column whose heading is clicked; a second click turns it round. Without scripts the tables stand as they came.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const place = heading.cellIndex;
    const isText = heading.classList.contains("text");
    const before = heading.getAttribute("aria-sort");
    const rising = before ? before === "descending" : isText;
    const value = (row) => row.cells[place].dataset.v ?? "";
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      // What has no number comes last either way.
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isText ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return rising ? order : -order;
    });
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
    body.append(...rows);
  });
}
