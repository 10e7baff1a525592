"""What people read: tables, Markdown, JUnit, plots, HTML."""
