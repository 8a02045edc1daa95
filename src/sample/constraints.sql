ALTER TABLE employees
    ADD FOREIGN KEY (region_id) REFERENCES regions,
    ADD FOREIGN KEY (manager_id) REFERENCES employees;
ALTER TABLE products
    ADD FOREIGN KEY (category_id) REFERENCES categories,
    ADD FOREIGN KEY (supplier_id) REFERENCES suppliers;
ALTER TABLE customers ADD FOREIGN KEY (region_id) REFERENCES regions;
ALTER TABLE orders
    ADD FOREIGN KEY (customer_id) REFERENCES customers,
    ADD FOREIGN KEY (employee_id) REFERENCES employees;
ALTER TABLE order_items
    ADD UNIQUE (order_id, line_number),
    ADD FOREIGN KEY (order_id) REFERENCES orders,
    ADD FOREIGN KEY (product_id) REFERENCES products;
ALTER TABLE shipments ADD FOREIGN KEY (order_id) REFERENCES orders;
ALTER TABLE payments ADD FOREIGN KEY (order_id) REFERENCES orders;
ALTER TABLE returns ADD FOREIGN KEY (order_item_id) REFERENCES order_items;
ALTER TABLE support_tickets
    ADD FOREIGN KEY (customer_id) REFERENCES customers,
    ADD FOREIGN KEY (order_id) REFERENCES orders,
    ADD FOREIGN KEY (agent_id) REFERENCES employees;

CREATE INDEX ON orders (customer_id);
CREATE INDEX ON orders (ordered_at);
CREATE INDEX ON order_items (product_id);
CREATE INDEX ON payments (order_id);
CREATE INDEX ON support_tickets (customer_id);
CREATE INDEX ON support_tickets (order_id);
